// Forms that are sent without leaving the page. What is typed survives a reload, and stays after a failure.
import { say } from "./app.js";

const token = document.querySelector('meta[name="csrf"]')?.content;

/** The values of a form's fields by name; radio buttons and boxes that are not checked are left out. */
function values(form) {
  return Object.fromEntries(new FormData(form).entries());
}

/** Stores what is typed into a form in the session storage of the tab; signing out deletes it. */
export function keepDraft(form) {
  form.addEventListener("input", () => writeDraft(form));
}

/** Puts what was typed before a reload back into a form. */
export function restoreDraft(form) {
  const draft = readDraft(form);
  for (const field of draft ? form.elements : []) {
    if (!field.name || field.name === "csrf") continue;
    if (["radio", "checkbox"].includes(field.type)) field.checked = draft[field.name] === field.value;
    else field.value = draft[field.name] ?? field.value;
  }
}

const place = (form) => `draft ${form.dataset.draft}`;
export const readDraft = (form) => JSON.parse(sessionStorage.getItem(place(form)) ?? "null");
export const writeDraft = (form) => sessionStorage.setItem(place(form), JSON.stringify(values(form)));

/** Empties a form whose text is saved. */
export function dropDraft(form) {
  sessionStorage.removeItem(place(form));
  form.reset();
  for (const field of form.querySelectorAll('input[type="hidden"]:not([name="csrf"])')) field.value = "";
}

/** Shows an error at the form and as a message; "" takes it away. */
export function showError(form, words) {
  const alert = form.querySelector('[role="alert"]');
  if (alert) { alert.textContent = words; alert.hidden = !words; }
  if (words) say(words, "error");
}

/** Sends a form once at a time; returns the HTML of the answer, or null after a failure, which is shown. */
export async function send(form, more = {}) {
  if (form.dataset.busy) return null;
  form.dataset.busy = "yes";
  showError(form, "");
  try {
    const body = new URLSearchParams(Object.entries({ ...values(form), ...more }).filter(([, value]) => value !== ""));
    const response = await fetch(form.dataset.path, { method: "POST", body, headers: { "HX-Request": "true", "HX-Current-URL": location.href, "X-CSRF-Token": token } });
    if (response.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    const html = await response.text();
    if (response.ok) return html;
    showError(form, detail(html, response.status));
  } catch {
    showError(form, "The server does not respond. Nothing was saved; your text is still here. Try again in a moment.");
  } finally {
    delete form.dataset.busy;
  }
  return null;
}

function detail(html, status) {
  try {
    const words = String(JSON.parse(html).detail);
    return words[0].toUpperCase() + words.slice(1);
  } catch { return `The server refused it (${status}). Your text is still here.`; }
}
