// The page: its frame with navigation and login, and the view that the address names.
import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { boot, changed, closeDialog, logIn, logOut, state, subscribe } from "./client.js";
import { Overview } from "./overview.js";
import { Volume, Volumes } from "./volumes.js";
import { Hosts } from "./hosts.js";
import { Session } from "./session.js";
import { Maps } from "./maps.js";
import { Settings } from "./settings.js";
import { Events } from "./events.js";
import { Explain } from "./explain.js";
import { Slow } from "./slow.js";
import { Configuration } from "./configuration.js";
import { Health } from "./health.js";
import { Dialog, clock, plural, safe } from "./widgets.js";
import { sentence } from "./summary.js";

const VIEWS = [
  ["overview", "Overview", Overview],
  ["volumes", "Volumes", Volumes],
  ["hosts", "Hosts", Hosts],
  ["maps", "Maps", Maps],
  ["settings", "Settings", Settings],
  ["events", "Events", Events],
  ["explain", "Explain", Explain],
  ["slow", "Slow", Slow],
  ["configuration", "Configuration", Configuration],
  ["health", "Health", Health],
];

// The views of one object of a list: #/volumes/NAME.
const DETAILS = { volumes: Volume, hosts: Session };

// The view and the rest of the address: #/volumes/NAME.
function place() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { view: parts[0] || "overview", rest: parts.slice(1) };
}

function Login() {
  const [token, setToken] = useState("");
  const [words, setWords] = useState("");
  const [isBusy, setBusy] = useState(false);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await logIn(token);
    } catch (problem) {
      setWords(problem.message);
      setToken("");
    }
    setBusy(false);
  };
  const shown = words || state.loginProblem;
  return html`<main class="login"><form onSubmit=${send}>
    <h1><img src="/page/icon.svg" alt="" width="32" height="32" /> Lunar</h1>
    <label class="field"><span>Token</span><input id="token" type="password" autocomplete="current-password" required
      value=${token} aria-describedby="login-help" onInput=${(event) => setToken(event.target.value)} /></label>
    ${shown && html`<p class="failure" role="alert">${safe(shown)}</p>`}
    <button class="primary" type="submit" disabled=${isBusy}>${isBusy ? "Logging in …" : "Log in"}</button>
    <p class="dim" id="login-help">A token of an <code>[api-token.NAME]</code> in the configuration. On the server itself, <code>lunar web</code>
      ${" "}prints a link that needs no token.</p>
  </form></main>`;
}

// Speaks changes of the state to screen readers, at most every ten seconds.
function Announcer({ words }) {
  const [spoken, setSpoken] = useState(words);
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + 10000 - Date.now());
    const timer = setTimeout(() => {
      last.current = Date.now();
      setSpoken(words);
    }, wait);
    return () => clearTimeout(timer);
  }, [words]);
  return html`<p class="unseen" role="status">${spoken}</p>`;
}

function Frame() {
  const [, draw] = useState(0);
  const [{ view, rest }, setPlace] = useState(place());
  useEffect(() => subscribe(() => draw((count) => count + 1)), []);
  useEffect(() => {
    const move = () => {
      setPlace(place());
      closeDialog(state.dialog);
      window.scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    };
    addEventListener("hashchange", move);
    // The time since the last frame is shown.
    const timer = setInterval(() => !state.connected && changed(), 1000);
    const search = (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
      const found = document.querySelector("input[type=search]");
      if (found) {
        event.preventDefault();
        found.focus();
      }
    };
    addEventListener("keydown", search);
    return () => {
      removeEventListener("hashchange", move);
      removeEventListener("keydown", search);
      clearInterval(timer);
    };
  }, []);
  if (state.caller === undefined) return html`<p class="boot">Lunar is loading.</p>`;
  if (state.caller === null) return html`<${Login} />`;
  const [, title, View] = VIEWS.find(([name]) => name === view) || VIEWS[0];
  const Detail = rest[0] && Object.hasOwn(DETAILS, view) ? DETAILS[view] : null;
  const Shown = Detail ?? View;
  document.title = `${Detail ? safe(rest[0]) : title} – Lunar`;
  const { dialog } = state;
  const troubles = state.live?.troubles.length ?? 0;
  const silent = state.lastFrame > 0 ? `No data since ${clock(state.lastFrame / 1000, false)}` : "No data yet";
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="top"><a class="brand" href="#/overview"><img src="/page/icon.svg" alt="" width="24" height="24" /> Lunar</a>
      <span class=${`live ${state.connected ? "on" : "off"}`}><span aria-hidden="true">●</span> ${state.connected ? "live" : "no connection"}</span>
      <span class="spring"></span>
      <span class="who"><span class="name">${safe(state.caller.name)}</span> <span class="role">${state.caller.role === "write" ? "may change" : "may read"}</span></span>
      <button class="quiet" onClick=${logOut}>Log out</button></header>
    <nav aria-label="Views"><ul>${VIEWS.map(([name, title]) => html`<li><a href=${`#/${name}`}
      aria-current=${name === view ? "page" : undefined}>${title}${name === "health" && troubles > 0 && html`
      <span class="badge" aria-label=${plural(troubles, "trouble")}>${troubles}</span>`}</a></li>`)}</ul></nav>
    <main id="main" tabindex="-1">
      ${!state.connected && html`<p class="banner" role="alert"><span aria-hidden="true">✖</span> ${silent}: Lunar does not answer. The page tries again.</p>`}
      <h1 class=${view === "overview" ? "unseen" : ""}>${Detail ? html`<a href=${`#/${view}`}>${title}</a> ▸ ${safe(rest[0])}` : title}</h1>
      <${Shown} key=${`${view}/${rest.join("/")}`} rest=${rest} />
    </main>
    ${dialog && html`<${Dialog} key=${dialog.key} title=${dialog.title} onClose=${dialog.close}>${dialog.content()}<//>`}
    <${Announcer} words=${state.connected ? sentence().words : silent} />`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${Frame} />`, root);
void boot();
