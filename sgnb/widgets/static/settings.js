// The user's settings, for every view of a page. JupyterLab's panel publishes them (labextension/src/settings.ts); where there
// is no panel, these defaults hold. Fonts and the legend are style alone and stand on the body.
//
//   settings()              {shade, historyMinutes, textFont, showWhitespace, legend} as they are now
//   const off = onSettings(listener)

const DEFAULTS = { shade: "none", historyMinutes: 10, textFont: "code", showWhitespace: false, legend: true };

export function settings() {
  return { ...DEFAULTS, ...globalThis[Symbol.for("sgnb.settings")] };
}

/** Call `listener` after each change; returns how to stop that. */
export function onSettings(listener) {
  const page = globalThis.document; // none where a store alone is tested
  page?.addEventListener("sgnb-settings", listener);
  return () => page?.removeEventListener("sgnb-settings", listener);
}
