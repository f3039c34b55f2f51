// Before anything is drawn, so that no page flashes in the other colours.
(() => {
  "use strict";
  const saved = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (saved === "light" || saved === "dark") document.documentElement.dataset.theme = saved;
})();
