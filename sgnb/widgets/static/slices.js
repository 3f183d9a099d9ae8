// Work in slices: a generator that yields now and then is carried on for some milliseconds at a time, so that what takes long
// (a snapshot of a large tree, the last events of many requests) makes no long task. What is short is done at once.

const SLICE = 8; // ms

/** Jobs one after another, each a generator. */
export class Slices {
  constructor() {
    this._jobs = [];
    this.busy = false;
  }

  /** One more job. What a job does may bring the next: that one waits for its turn. */
  put(job) {
    this._jobs.push(job);
    if (!this.busy) this._go();
  }

  _go() {
    this.busy = true;
    const until = performance.now() + SLICE;
    while (this._jobs.length) {
      if (performance.now() > until) {
        setTimeout(() => this._go());
        return;
      }
      let done = true; // a job that fails is over, and the next one begins
      try {
        done = this._jobs[0].next().done;
      } catch (error) {
        console.error(error);
      }
      if (done) this._jobs.shift();
    }
    this.busy = false;
  }
}

/** All of a job at once. */
export function drain(job) {
  let step = job.next();
  while (!step.done) step = job.next();
  return step.value;
}
