// Decisions on their way to the server. They are kept in the session storage of the tab until the server has answered,
// so they survive a page load and a lost network. Each has a key, by which the server recognises a repeated one.
// Each user has an outbox: who signs in next in this tab must not send another person's decisions.
import { say } from "./app.js";

const RETRY = 3000, PATIENCE = 20_000; // milliseconds: between attempts, and for an answer
const state = document.getElementById("saving");
const page = document.querySelector('meta[name="csrf"]'); // null while nobody is signed in
const token = page?.content, STORE = `outbox ${page?.dataset.user}`;
const waiting = page ? JSON.parse(sessionStorage.getItem(STORE) ?? "[]") : []; // {key, note, version, values}
let listener = ({ refusal }) => { if (refusal) say(`A decision was not saved: ${refusal}`, "error"); };
let running = null; // the promise of the loop that sends
let timer = null;
let stuck = false; // the server cannot be reached
let notice = null; // the message that says so
let refused = 0; // decisions

function keep() {
  if (waiting.length) sessionStorage.setItem(STORE, JSON.stringify(waiting));
  else sessionStorage.removeItem(STORE);
}

function show(words, kind) {
  if (!state) return;
  state.textContent = words;
  state.className = `saving ${kind}`;
}

/** Calls a function with each answer: {item, html, refusal}; html: the panel, if the answer has one. */
export function onAnswer(call) { listener = call; }

export const isEmpty = () => waiting.length === 0;

/** Whether decisions wait because the server cannot be reached. */
export const isStuck = () => stuck;

/** The codes of a note on which decisions wait. */
export const waitingCodes = (note) => waiting.filter((item) => item.note === String(note)).map((item) => item.values.code);

/** Adds a decision and sends it after the earlier ones. The promise says whether nothing was refused; version: of the panel. */
export function post(note, version, values) {
  const before = refused, last = waiting.at(-1);
  const isTwice = last?.note === String(note) && JSON.stringify(last.values) === JSON.stringify(values); // such as a double click
  if (!isTwice || values.action === "undo") waiting.push({ key: crypto.randomUUID(), note: String(note), version, values });
  keep();
  return flush().then(() => refused === before);
}

/** Sends what waits. The promise is kept when the server has answered everything, or cannot be reached. */
export function flush() {
  clearTimeout(timer);
  running ??= loop().finally(() => { running = null; });
  return running;
}

async function loop() {
  let refusal = "";
  while (waiting.length) {
    const item = waiting[0];
    show("Saving …", "busy");
    let response, html;
    try {
      const body = new URLSearchParams({ ...item.values, key: item.key, version: item.version });
      response = await fetch(`/notes/${item.note}/decide`, { method: "POST", body, signal: AbortSignal.timeout(PATIENCE), headers: { "HX-Request": "true", "HX-Current-URL": location.href, "X-CSRF-Token": token } });
      html = await response.text();
    } catch { return later("Offline"); }
    if (response.status === 401) {
      show("Signed out", "bad");
      return go(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    }
    if (response.status >= 500 || response.status === 429 || !isAnswer(response, html)) return later("Not saved yet");
    waiting.shift();
    const version = Number(/data-version="(\d+)"/.exec(html)?.[1] ?? item.version);
    for (const other of waiting) if (other.note === item.note) other.version = version;
    keep();
    notice?.remove();
    stuck = false;
    refusal = whyRefused(response, html);
    if (refusal) refused += 1;
    listener({ item, html: isPanel(html) ? html : "", refusal });
  }
  show(refusal ? "Not saved" : "Saved", refusal ? "bad" : "good");
}

const isPanel = (html) => html.includes('id="panel"');

/** Whether the answer comes from this server: a proxy or the sign-in page of a network may send anything. */
const isAnswer = (response, html) => isPanel(html) || (!response.ok && response.headers.get("content-type")?.includes("json"));

/** The sentence of the server why it has not saved a decision; "" if it has. */
function whyRefused(response, html) {
  if (response.ok) return "";
  if (!isPanel(html)) return String(JSON.parse(html).detail);
  return new DOMParser().parseFromString(html, "text/html").getElementById("message").textContent.trim();
}

function later(words) {
  const wasStuck = stuck;
  stuck = true;
  if (!wasStuck) onStuck();
  const count = `${waiting.length} decision${waiting.length === 1 ? "" : "s"}`;
  show(`${words}: ${count} to save`, "bad");
  notice?.remove();
  notice = say(`${words}: ${count} will be sent again.`, "error");
  timer = setTimeout(flush, RETRY);
}
let onStuck = () => {};

/** Calls a function when the server cannot be reached any more. */
export function whenStuck(call) { onStuck = call; }

addEventListener("online", () => { if (waiting.length) flush(); });
addEventListener("beforeunload", (event) => { if (waiting.length && !leaving) event.preventDefault(); });
let leaving = false;

function go(url) {
  leaving = true;
  location.assign(url);
}

/** Goes to another page once everything is saved; if something cannot be saved or is refused, the page stays. */
export async function leave(url) {
  const before = refused;
  await flush();
  if (waiting.length && !leaving) return say("Not all decisions are saved yet. Stay on this page until they are.", "error");
  if (refused === before && !leaving) go(url);
}

addEventListener("load", () => { // the page listens to answers from then on
  if (waiting.length) flush(); // of an earlier page
  for (const name of Object.keys(sessionStorage).filter((key) => page && key.startsWith("outbox ") && key !== STORE))
    say(`Decisions of ${name.slice(7)} are not saved. They are sent when ${name.slice(7)} signs in here again.`, "error");
});
