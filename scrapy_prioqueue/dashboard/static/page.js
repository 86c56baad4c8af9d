// Keeps the view current by server-sent events; without it, every view works and shows the state when it was loaded.
(() => {
  "use strict";
  const view = document.body.dataset.view;
  const freshness = document.getElementById("freshness");
  const RETRY_MS = 5000;
  let source = null;
  let retry = 0;
  let readAt = freshness && freshness.dataset.age ? Date.now() - 1000 * Number(freshness.dataset.age) : 0;
  let heardAt = Date.now();

  const focusable = (part) => [...part.querySelectorAll("a, button, summary, [tabindex]")];

  // Replaces a part, but keeps the keyboard's place and how far its tables are scrolled.
  function show(id, html) {
    const part = document.getElementById(id);
    if (!part) return;
    const at = focusable(part).indexOf(document.activeElement);
    const scrolled = [...part.querySelectorAll(".table")].map((table) => table.scrollLeft);
    part.innerHTML = html;
    [...part.querySelectorAll(".table")].forEach((table, index) => { table.scrollLeft = scrolled[index] || 0; });
    if (at >= 0) (focusable(part)[at] || part.closest("main")).focus({ preventScroll: true });
  }

  function onMessage(event) {
    heardAt = Date.now();
    for (const [name, text] of Object.entries(JSON.parse(event.data))) {
      if (name === "age") readAt = Date.now() - 1000 * Number(text);
      else if (!isSelecting(name)) show(name, text);
    }
    tick();
  }

  // Somebody who is copying a text should not lose the selection.
  function isSelecting(id) {
    const selection = document.getSelection();
    const part = document.getElementById(id);
    return Boolean(selection && !selection.isCollapsed && part && part.contains(selection.anchorNode));
  }

  function tick() {
    if (!freshness || !readAt) return;
    const seconds = Math.max(0, Math.round((Date.now() - readAt) / 1000));
    const isLost = Date.now() - heardAt > 40000;
    freshness.classList.toggle("late", isLost || seconds > 120);
    const span = seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
    freshness.textContent = isLost ? `The dashboard's server does not answer; read ${span} ago` : `Read ${span} ago`;
  }

  function connect() {
    clearTimeout(retry);
    if (source || document.hidden) return;
    source = new EventSource(`/events?view=${encodeURIComponent(view)}`);
    source.onmessage = onMessage;
    source.onerror = () => {
      disconnect();
      retry = setTimeout(connect, RETRY_MS);
    };
  }

  function disconnect() {
    if (source) source.close();
    source = null;
  }

  // A browser opens few connections to a server, so tabs that nobody sees keep none.
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", connect);
  setInterval(tick, 1000);
  connect();
})();
