// Decisions on their way to the server. They are kept in the session storage of the tab until the server has answered,
// so they survive a page load and a lost network. Each has a key, by which the server recognises a repeated one.
import { say } from "./app.js";

const STORE = "outbox", RETRY = 3000; // milliseconds
const state = document.getElementById("saving");
const token = document.querySelector('meta[name="csrf"]')?.content;
let waiting = JSON.parse(sessionStorage.getItem(STORE) ?? "[]"); // {key, note, version, values}
let listener = () => {};
let running = null; // the promise of the loop that sends
let timer = null;

function keep() {
  if (waiting.length) sessionStorage.setItem(STORE, JSON.stringify(waiting));
  else sessionStorage.removeItem(STORE);
}

function show(words, kind) {
  if (!state) return;
  state.textContent = words;
  state.className = `saving ${kind}`;
}

/** Calls a function with each answer: {item, status, html, detail}. */
export function onAnswer(call) { listener = call; }

export const isEmpty = () => waiting.length === 0;

/** Adds a decision and sends it after the earlier ones; version: that of the panel, or null for the answer before. */
export function post(note, version, values) {
  waiting.push({ key: crypto.randomUUID(), note: String(note), version, values });
  keep();
  return flush();
}

/** Sends what waits. The promise is kept when the server has answered everything, or cannot be reached. */
export function flush() {
  clearTimeout(timer);
  running ??= loop().finally(() => { running = null; });
  return running;
}

async function loop() {
  while (waiting.length) {
    const item = waiting[0];
    show("Saving …", "busy");
    let response, html;
    try {
      const body = new URLSearchParams({ ...item.values, key: item.key, version: item.version });
      response = await fetch(`/notes/${item.note}/decide`, { method: "POST", body, headers: { "HX-Request": "true", "X-CSRF-Token": token } });
      html = await response.text();
    } catch { return later("Offline"); }
    if (response.status === 401) { show("Signed out", "bad"); return location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`); }
    if (response.status >= 500 || response.status === 429) return later("Not saved yet");
    waiting.shift();
    const version = Number(/data-version="(\d+)"/.exec(html)?.[1] ?? item.version);
    for (const other of waiting) if (other.note === item.note) other.version = version;
    keep();
    listener({ item, status: response.status, html, detail: detail(response, html) });
  }
  show("Saved", "good");
}

function detail(response, html) {
  if (response.ok || !response.headers.get("content-type")?.includes("json")) return "";
  try { return String(JSON.parse(html).detail); } catch { return "The server refused the decision."; }
}

function later(words) {
  const count = `${waiting.length} decision${waiting.length === 1 ? "" : "s"}`;
  show(`${words}: ${count} to save`, "bad");
  say(`${words}: ${count} will be sent again.`, "error");
  timer = setTimeout(flush, RETRY);
}

addEventListener("online", () => { if (waiting.length) flush(); });
addEventListener("beforeunload", (event) => { if (waiting.length && !leaving) event.preventDefault(); });
let leaving = false;

/** Goes to another page once everything is saved; while it cannot be saved, the page stays. */
export async function leave(url) {
  await flush();
  if (waiting.length) return say("Not all decisions are saved yet. Stay on this page until they are.", "error");
  leaving = true;
  location.assign(url);
}

if (waiting.length) flush(); // of an earlier page
