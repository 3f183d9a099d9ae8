/** The views' own modules (sgnb/widgets/static): plain JavaScript, the same that the widgets are made of. */

interface ISgnbView {
  options: Record<string, unknown>;
  changed(): void;
  destroy(): void;
}

interface ISgnbChannel {
  send(content: Record<string, unknown>): void;
  onMessage(listener: (content: unknown, buffers: unknown[]) => void): () => void;
}

interface ISgnbStore {
  readonly key: string;
  readonly phase: string;
  readonly time: number;
  readonly now: number;
  readonly step: number;
  readonly isLive: boolean;
  engineState: string;
  /** Of a recording: its end is "live". */
  replaying: { span: [number, number]; file: string; end: boolean; trouble: string } | null;
  readonly playing: number;
  readonly inUse: boolean;
  /** Forget all data. */
  reset(): void;
  play(speed: number): void;
  pause(): void;
  loadPart(picture: Record<string, unknown>): void;
  load(picture: Record<string, unknown>): void;
  feedEvents(events: unknown[]): boolean;
  attach(channel: ISgnbChannel): () => void;
  subscribe(listener: (what: string) => void): () => void;
  goTo(time: number): void;
  goLive(): void;
}

type SgnbViewClass = new (host: HTMLElement, store: ISgnbStore, options?: Record<string, unknown>) => ISgnbView;

declare module '*/static/store.js' {
  export function storeOf(key: string): ISgnbStore;
}

declare module '*/static/tree.js' {
  export const TreeView: SgnbViewClass;
}

declare module '*/static/kv.js' {
  export const KVMapView: SgnbViewClass;
}

declare module '*/static/timeline.js' {
  export const TimelineView: SgnbViewClass;
}

declare module '*/static/graph.js' {
  export const GraphView: SgnbViewClass;
}

declare module '*/static/msgpack.js' {
  /** Throws RangeError on what is no MessagePack. */
  export function decode(bytes: Uint8Array): unknown;
}
