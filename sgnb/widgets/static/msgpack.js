// Decoder of the MessagePack that the engine sends: nil, booleans, numbers, text, bytes, arrays, maps. No extensions.

const utf8 = new TextDecoder("utf-8");

import { drain } from "./slices.js";

const PART = 64; // items of a long array read at a time

/** Decode one value from `bytes` (Uint8Array, DataView or ArrayBuffer). Throws RangeError on what is no MessagePack. */
export function decode(bytes) {
  return drain(decoding(bytes));
}

/** The same in slices: yields between parts of the long arrays that a map holds. */
export function* decoding(bytes) {
  const data = asBytes(bytes);
  const reader = { data, view: new DataView(data.buffer, data.byteOffset, data.byteLength), at: 0 };
  const keys = opened(reader, 0x80, 0xde);
  const value = keys < 0 ? read(reader, 0) : {};
  for (let left = keys; left > 0; left--) {
    const key = read(reader, 1);
    const length = opened(reader, 0x90, 0xdc);
    const item = length < 0 ? read(reader, 1) : [];
    for (let i = 0; i < length; i++) {
      item.push(read(reader, 2));
      if (i % PART === PART - 1) yield;
    }
    if (key !== "__proto__") value[key] = item;
  }
  if (reader.at !== data.length) throw new RangeError(`MessagePack: ${data.length - reader.at} bytes too many`);
  return value;
}

/** The length of what begins here, if it is of this kind: `small` or `wide` codes; else -1, and nothing is read. */
function opened(r, small, wide) {
  const code = r.view.getUint8(r.at);
  if ((code & 0xf0) === small) return r.data[r.at++] & 15;
  if (code !== wide && code !== wide + 1) return -1;
  r.at++;
  return uint(r, 2 << (code - wide));
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
  switch (code) {
    case 0xc0:
      return null;
    case 0xc2:
      return false;
    case 0xc3:
      return true;
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return raw(r, uint(r, 1 << (code - 0xc4)));
    case 0xca:
      r.at += 4;
      return r.view.getFloat32(r.at - 4);
    case 0xcb:
      r.at += 8;
      return r.view.getFloat64(r.at - 8);
    case 0xcc:
    case 0xcd:
    case 0xce:
      return uint(r, 1 << (code - 0xcc));
    case 0xcf:
      return uint(r, 4) * 4294967296 + uint(r, 4);
    case 0xd0:
      return (uint(r, 1) << 24) >> 24;
    case 0xd1:
      return (uint(r, 2) << 16) >> 16;
    case 0xd2:
      return uint(r, 4) | 0;
    case 0xd3:
      return (uint(r, 4) | 0) * 4294967296 + uint(r, 4);
    case 0xd9:
    case 0xda:
    case 0xdb:
      return text(r, uint(r, 1 << (code - 0xd9)));
    case 0xdc:
    case 0xdd:
      return array(r, uint(r, 2 << (code - 0xdc)), depth);
    case 0xde:
    case 0xdf:
      return map(r, uint(r, 2 << (code - 0xde)), depth);
    default:
      throw new RangeError(`MessagePack: type 0x${code.toString(16)} at ${r.at - 1}`);
  }
}

/** The next `size` (1, 2 or 4) bytes as a number. */
function uint(r, size) {
  const { view, at } = r;
  r.at += size;
  return size === 1 ? view.getUint8(at) : size === 2 ? view.getUint16(at) : view.getUint32(at);
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
