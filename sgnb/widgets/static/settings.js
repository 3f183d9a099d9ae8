// The reader's settings, as JupyterLab gives them to the page (labextension/src/settings.ts); elsewhere there are none.

/** `{shade, showWhitespace, …}`; empty outside of Lab. */
export function settings() {
  return globalThis[Symbol.for("sgnb.settings")] ?? {};
}

/** Call `listener` when they change; returns the function that ends it. */
export function onSettings(listener) {
  document.addEventListener("sgnb-settings", listener);
  return () => document.removeEventListener("sgnb-settings", listener);
}
