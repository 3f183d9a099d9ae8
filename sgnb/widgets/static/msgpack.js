// Decoder of the MessagePack that the engine sends: nil, booleans, numbers, text, bytes, arrays, maps. No extensions.

const utf8 = new TextDecoder("utf-8");

/** Decode one value from `bytes` (Uint8Array, DataView or ArrayBuffer). Throws RangeError on what is no MessagePack. */
export function decode(bytes) {
  const data = asBytes(bytes);
  const reader = { data, view: new DataView(data.buffer, data.byteOffset, data.byteLength), at: 0 };
  const value = read(reader, 0);
  if (reader.at !== data.length) throw new RangeError(`MessagePack: ${data.length - reader.at} bytes too many`);
  return value;
}

/** The bytes of what a comm delivers. */
export function asBytes(buffer) {
  if (buffer instanceof Uint8Array) return buffer;
  if (ArrayBuffer.isView(buffer)) return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  return new Uint8Array(buffer);
}

function read(r, depth) {
  if (depth > 64) throw new RangeError("MessagePack: nested too deep");
  const code = r.view.getUint8(r.at++);
  if (code < 0x80) return code;
  if (code >= 0xe0) return code - 256;
  if (code < 0x90) return map(r, code & 15, depth);
  if (code < 0xa0) return array(r, code & 15, depth);
  if (code < 0xc0) return text(r, code & 31);
  const v = r.view;
  const at = r.at;
  switch (code) {
    case 0xc0:
      return null;
    case 0xc2:
      return false;
    case 0xc3:
      return true;
    case 0xc4:
      r.at += 1;
      return raw(r, v.getUint8(at));
    case 0xc5:
      r.at += 2;
      return raw(r, v.getUint16(at));
    case 0xc6:
      r.at += 4;
      return raw(r, v.getUint32(at));
    case 0xca:
      r.at += 4;
      return v.getFloat32(at);
    case 0xcb:
      r.at += 8;
      return v.getFloat64(at);
    case 0xcc:
      r.at += 1;
      return v.getUint8(at);
    case 0xcd:
      r.at += 2;
      return v.getUint16(at);
    case 0xce:
      r.at += 4;
      return v.getUint32(at);
    case 0xcf:
      r.at += 8;
      return v.getUint32(at) * 4294967296 + v.getUint32(at + 4);
    case 0xd0:
      r.at += 1;
      return v.getInt8(at);
    case 0xd1:
      r.at += 2;
      return v.getInt16(at);
    case 0xd2:
      r.at += 4;
      return v.getInt32(at);
    case 0xd3:
      r.at += 8;
      return v.getInt32(at) * 4294967296 + v.getUint32(at + 4);
    case 0xd9:
      r.at += 1;
      return text(r, v.getUint8(at));
    case 0xda:
      r.at += 2;
      return text(r, v.getUint16(at));
    case 0xdb:
      r.at += 4;
      return text(r, v.getUint32(at));
    case 0xdc:
      r.at += 2;
      return array(r, v.getUint16(at), depth);
    case 0xdd:
      r.at += 4;
      return array(r, v.getUint32(at), depth);
    case 0xde:
      r.at += 2;
      return map(r, v.getUint16(at), depth);
    case 0xdf:
      r.at += 4;
      return map(r, v.getUint32(at), depth);
    default:
      throw new RangeError(`MessagePack: type 0x${code.toString(16)} at ${at - 1}`);
  }
}

function raw(r, length) {
  if (r.at + length > r.data.length) throw new RangeError("MessagePack: cut short");
  const bytes = r.data.subarray(r.at, r.at + length);
  r.at += length;
  return bytes;
}

function text(r, length) {
  const bytes = raw(r, length);
  if (length < 24) {
    let out = "";
    for (let i = 0; i < length; i++) {
      if (bytes[i] > 127) return utf8.decode(bytes);
      out += String.fromCharCode(bytes[i]);
    }
    return out;
  }
  return utf8.decode(bytes);
}

function array(r, length, depth) {
  const out = [];
  for (let i = 0; i < length; i++) out.push(read(r, depth + 1));
  return out;
}

function map(r, length, depth) {
  const out = {};
  for (let i = 0; i < length; i++) {
    const key = read(r, depth + 1);
    const value = read(r, depth + 1);
    if (key === "__proto__") continue;
    out[key] = value;
  }
  return out;
}
