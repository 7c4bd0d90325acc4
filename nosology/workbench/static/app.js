// Code of every page: CSRF token of htmx requests, help dialog, keyboard shortcuts.

const token = document.querySelector('meta[name="csrf"]')?.content;
document.body.addEventListener("htmx:configRequest", (event) => {
  if (token) event.detail.headers["X-CSRF-Token"] = token;
});
document.body.addEventListener("htmx:responseError", (event) => {
  say(event.detail.xhr.status === 401 ? "You are signed out." : "That did not work. Load the page again.");
  if (event.detail.xhr.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
});
document.body.addEventListener("htmx:sendError", () => say("The server does not respond. Nothing was lost; try again."));

/** Announces a message to screen readers. */
export function say(message) {
  document.getElementById("say").textContent = message;
}

const help = document.getElementById("help");
const switchBox = document.getElementById("keys-on");
let keysOn = localStorage.getItem("keys") !== "off";
switchBox.checked = keysOn;
switchBox.addEventListener("change", () => {
  keysOn = switchBox.checked;
  localStorage.setItem("keys", keysOn ? "on" : "off");
});
document.getElementById("help-button").addEventListener("click", () => help.showModal());

/** Whether a key event is a shortcut of the page: not typing in a field, not a shortcut of the browser. */
export function isShortcut(event) {
  if (!keysOn || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return false;
  return !event.target.closest("input:not([type=checkbox]), textarea, select");
}

/** The URL of the next note in the order of the queue. */
function nextUrl() {
  const note = document.getElementById("note");
  return note ? `/next?after=${note.dataset.note}&order=${note.dataset.order}` : document.getElementById("next")?.href ?? "/next";
}

document.addEventListener("keydown", (event) => {
  if (!isShortcut(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "?") help.showModal();
  else if (event.key === "q") location.assign("/");
  else if (event.key === "g") location.assign(nextUrl());
  else return;
  event.preventDefault();
});
