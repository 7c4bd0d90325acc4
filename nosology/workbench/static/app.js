// Code of every page: CSRF token of htmx requests, messages, help dialog, keyboard shortcuts.
import { leave } from "./outbox.js";

const token = document.querySelector('meta[name="csrf"]')?.content;
document.body.addEventListener("htmx:configRequest", (event) => {
  if (token) event.detail.headers["X-CSRF-Token"] = token;
});
document.body.addEventListener("htmx:responseError", (event) => {
  const { status, responseText } = event.detail.xhr;
  say(status === 401 ? "You are signed out." : sentence(responseText) ?? "That did not work. Load the page again.", "error");
  if (status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
});
/** The sentence of an error response, if it has one. */
function sentence(body) {
  try { return JSON.parse(body).detail; } catch { return null; }
}
document.body.addEventListener("htmx:sendError", () => say("The server does not respond; try again in a moment.", "error"));

const SECONDS = 4; // that a message is shown; errors stay until they are closed

/** Shows a message, announces it to screen readers and returns its element; kind: "" or "error". */
export function say(message, kind = "") {
  const box = document.getElementById("toasts");
  [...box.children].filter((old) => old.dataset.words === message || !old.classList.contains("error")).forEach((old) => old.remove());
  const toast = document.createElement("div");
  toast.className = `toast ${kind}`;
  toast.dataset.words = message;
  toast.append(message.slice(0, 1).toUpperCase() + message.slice(1));
  if (kind === "error") {
    const close = document.createElement("button");
    close.type = "button";
    close.className = "close";
    close.setAttribute("aria-label", "Close the message");
    close.textContent = "×";
    close.addEventListener("click", () => toast.remove());
    toast.append(close);
  } else setTimeout(() => toast.remove(), SECONDS * 1000);
  box.append(toast);
  return toast;
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
  return !event.target.closest("input:not([type=checkbox]):not([type=radio]), textarea, select");
}

/** The URL of the next note: in the order and with the filters of the queue from which the user came. */
function nextUrl() {
  const note = document.getElementById("note");
  return note ? `/next?after=${note.dataset.note}&${note.dataset.queue}` : document.getElementById("next")?.href ?? "/next";
}

const rows = () => [...document.querySelectorAll("table.list tbody tr a[href^='/notes/'], table.list tbody tr a[href^='/queries/']")];

document.addEventListener("keydown", (event) => {
  if (!isShortcut(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "?") help.showModal();
  else if (event.key === "q") leave("/");
  else if (event.key === "g") leave(nextUrl());
  else if ("jk".includes(event.key) && rows().length) {
    const at = rows().indexOf(document.activeElement), step = event.key === "j" ? 1 : -1;
    rows()[at < 0 ? 0 : Math.min(rows().length - 1, Math.max(0, at + step))].focus(); // Enter follows the link
  } else return;
  event.preventDefault();
});
document.addEventListener("submit", (event) => { // the next person at this browser must not see what was typed
  if (event.target.getAttribute("action") !== "/logout") return;
  for (const key of Object.keys(sessionStorage)) if (key.startsWith("draft ")) sessionStorage.removeItem(key);
});
document.addEventListener("click", (event) => {
  const next = event.target.closest("#next");
  if (next && !event.ctrlKey && !event.metaKey) { event.preventDefault(); leave(next.href); }
});
