/**
 * Reads a recording (`*.sgnb`, see sgnb/recording/file.py) in the page, so that one can be looked at without a kernel.
 *
 * Bytes in, events out; no DOM, no store. Sizes are bounded before anything is inflated.
 */

import type { TranslationBundle } from '@jupyterlab/translation';

import { decode } from '../../sgnb/widgets/static/msgpack.js';

const MAGIC = [0x89, 0x73, 0x67, 0x6e, 0x62, 0x0d, 0x0a, 0x1a];
const FORMAT = 1;
const MAX_STORED_BYTES = 32 << 20;
const MAX_FRAME_BYTES = 64 << 20;

/** A file that is no recording, or one that this sgnb cannot read; the message is for people. */
export class RecordingError extends Error {}

type Fields = Record<string, unknown>;

export interface INumbered {
  seq: number;
  event: Fields & { t: string; time: number };
}

/** A moment that events go on from, in the form of the engine's answer to `picture`. */
export type Picture = Fields & { time: number; seq: number };

/** A stretch without a hole, and the numbers of the events that are missing behind it. */
export interface IPart {
  picture: Picture | null;
  events: INumbered[];
  gap: { from: number; to: number } | null;
}

export interface IRecording {
  model: string;
  engine: string;
  /** The beginning; later ones stand in `parts`, behind events that are missing. */
  picture: Picture;
  parts: IPart[];
  events: INumbered[];
}

/** All of a recording up to its last whole frame. */
export async function readRecording(bytes: Uint8Array, trans: TranslationBundle): Promise<IRecording> {
  if (bytes.length < MAGIC.length + 3 || MAGIC.some((byte, index) => bytes[index] !== byte)) {
    throw new RecordingError(trans.__('This file is no recording of sgnb.'));
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = MAGIC.length + 3 + bytes[MAGIC.length + 2];
  if (view.getUint16(MAGIC.length, true) !== FORMAT) {
    const version = new TextDecoder('ascii').decode(bytes.subarray(MAGIC.length + 3, start));
    throw new RecordingError(
      trans.__('This recording was written by sgnb %1 and cannot be read.', version.replace(/[^ -~]/g, '?'))
    );
  }
  const out: IParts = { header: {}, parts: [] };
  let at = start;
  while (at + 9 <= bytes.length) {
    const length = view.getUint32(at, true);
    const crc = view.getUint32(at + 4, true);
    const deflated = bytes[at + 8];
    if (length > MAX_STORED_BYTES || deflated > 1) {
      throw new RecordingError(trans.__('The recording is damaged at byte %1.', at));
    }
    const stored = bytes.subarray(at + 9, at + 9 + length);
    if (stored.length < length) {
      break; // it stops inside a frame: a crash, or a full disk
    }
    if (crc32(stored) !== crc) {
      throw new RecordingError(trans.__('The recording is damaged at byte %1.', at));
    }
    take(decode(deflated ? await inflate(stored, trans) : stored) as Fields, out);
    at += 9 + length;
  }
  const picture = out.parts[0]?.picture;
  if (!picture) {
    throw new RecordingError(trans.__('The recording holds no steps.'));
  }
  const model = (out.header.model as Fields | undefined)?.model;
  return {
    model: typeof model === 'string' ? model : '',
    engine: typeof out.header.engine === 'string' ? out.header.engine : '',
    picture,
    parts: out.parts,
    events: out.parts.flatMap(part => part.events)
  };
}

interface IParts {
  header: Fields;
  parts: IRecording['parts'];
}

function take(item: Fields, out: IParts): void {
  if (item.t === 'header') {
    out.header = item;
  } else if (item.t === 'snapshot') {
    out.parts.push({ picture: pictureOf(item), events: [], gap: null });
  } else if (item.t === 'gap' && out.parts.length) {
    const gap = { from: Number(item.from_seq ?? 0), to: Number(item.to_seq ?? 0) };
    out.parts[out.parts.length - 1].gap = gap;
  } else if (item.t === 'events' && out.parts.length) {
    const { events } = out.parts[out.parts.length - 1];
    ((item.items as INumbered[] | undefined) ?? []).forEach(one => events.push(one)); // too many to be arguments
  }
}

/** A recording's snapshot as the engine's answer to `picture` (sgnb/engine/scheduler/picture.py). */
function pictureOf(snapshot: Fields): Picture {
  const time = Number(snapshot.time ?? 0);
  // On the wire nodes and runs are arrays that begin with their record's name.
  const rows = ((snapshot.nodes as unknown[][] | undefined) ?? []).map(row => row.slice(1) as number[]);
  // Places as in messages.SnapshotNode; older files end with the tenth.
  const nodes = rows.map(row => {
    const [id, parent, start, length, locked, pinned, hits] = row;
    const [locks, pins, soft, used, root, read] = row.slice(10);
    return [id, parent, start, length, locks || Number(locked), read || hits, pins || Number(pinned), soft ?? 0, used || time, root || parent];
  });
  const args = (snapshot.args as Fields | undefined) ?? {};
  const requests = ((snapshot.requests as Fields[] | undefined) ?? []).map(one => ({
    time_admitted: 0,
    node: 0,
    match: null,
    ...one,
    time_queued: one.time_queued || time
  }));
  return {
    seq: Number(snapshot.seq ?? 0),
    time,
    step: Number(snapshot.step ?? 0),
    slots: snapshot.max_total_tokens,
    slot_bytes: snapshot.slot_bytes ?? 0,
    page_size: args.page_size ?? 1,
    policy: args.schedule_policy ?? 'lpm',
    settings: { schedule_policy: 'lpm', ...args },
    nodes,
    next: snapshot.next ?? [],
    runs: ((snapshot.slots as unknown[][] | undefined) ?? []).map(row => row.slice(1)),
    runs_left_out: 0,
    requests,
    stats: snapshot.stats ?? null
  };
}

async function inflate(stored: Uint8Array, trans: TranslationBundle): Promise<Uint8Array> {
  const reader = new Blob([stored]).stream().pipeThrough(new DecompressionStream('deflate')).getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      size += part.value.length;
      if (size > MAX_FRAME_BYTES) {
        throw new RecordingError(trans.__('The recording is damaged: a frame is larger than any that sgnb writes.'));
      }
      parts.push(part.value);
    }
  } catch (error) {
    throw error instanceof RecordingError
      ? error
      : new RecordingError(trans.__('The recording is damaged: a frame cannot be inflated.'));
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const TABLE = new Uint32Array(256).map((_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit++) {
    value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  }
  return value;
});

function crc32(bytes: Uint8Array): number {
  let sum = 0xffffffff;
  for (let index = 0; index < bytes.length; index++) {
    sum = (sum >>> 8) ^ TABLE[(sum ^ bytes[index]) & 0xff];
  }
  return (sum ^ 0xffffffff) >>> 0;
}
