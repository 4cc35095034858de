//! A headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol): messages are JSON, ended by a zero
//! byte.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::process;

/// The longest wait for an answer of the browser.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// The options for a browser that does nothing by itself. The tests run as root, for whom Chromium has no sandbox; it
/// opens the pages of the tests only.
const OPTIONS: &str = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
    --no-default-browser-check --disable-background-networking --disable-component-update --disable-sync \
    --disable-extensions --disable-default-apps --metrics-recording-only --mute-audio --hide-scrollbars \
    --force-color-profile=srgb --remote-debugging-pipe";

/// The browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: String,
    /// Errors on the console, exceptions and violations of the policy of the page.
    pub errors: Vec<String>,
    /// Addresses of requests.
    pub requests: Vec<String>,
}

/// How the page looks.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub name: &'static str,
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

impl Browser {
    /// Starts a browser with its files in `folder`.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let log = std::fs::File::create(folder.join("chromium.log"))?;
        // The pipe has the file descriptors 3 and 4.
        let script = format!(
            "exec 3<&0 4>&1 0</dev/null 1>&2; exec chromium {OPTIONS} --user-data-dir='{}' about:blank",
            folder.join("profile").display()
        );
        let mut command = process::bound("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().context("cannot start chromium")?;
        let commands = child.stdin.take().context("the pipe to the browser")?;
        let answers = child.stdout.take().context("the pipe from the browser")?;
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for message in BufReader::new(answers).split(0) {
                let Some(value) = message.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) else { return };
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let (errors, requests) = (Vec::new(), Vec::new());
        let mut browser = Self { child, commands, messages, last: 0, session: String::new(), errors, requests };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().context("a session")?.to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Calls a method of the protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.last += 1;
        let id = self.last;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).context("the browser has ended")?;
        let end = Instant::now() + ANSWER_TIME_MAX;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let found = match self.messages.recv_timeout(left) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => bail!("{method} takes longer than {} s", ANSWER_TIME_MAX.as_secs()),
                Err(RecvTimeoutError::Disconnected) => bail!("the browser has ended; see chromium.log"),
            };
            if found["id"] == json!(id) {
                ensure!(found["error"].is_null(), "{method}: {}", found["error"]);
                return Ok(found["result"].clone());
            }
            self.note(&found);
        }
    }

    /// Keeps what an event says about errors and requests.
    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Log.entryAdded" if parameters["entry"]["level"] == "error" => {
                let entry = &parameters["entry"];
                self.errors.push(format!("{} {}", entry["text"], entry["url"]));
            }
            "Runtime.exceptionThrown" => {
                let details = &parameters["exceptionDetails"];
                self.errors.push(format!("{} {}", details["text"], details["exception"]["description"]));
            }
            "Runtime.consoleAPICalled"
                if ["error", "warning", "assert"].contains(&parameters["type"].as_str().unwrap_or_default()) =>
            {
                self.errors.push(format!("console: {}", parameters["args"]));
            }
            "Network.requestWillBeSent" => {
                self.requests.push(parameters["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// Errors since the last call.
    pub(crate) fn take_errors(&mut self) -> Result<Vec<String>> {
        // Events that have arrived before the answer are noted.
        self.eval("0")?;
        Ok(std::mem::take(&mut self.errors))
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", json!({ "url": url }))?;
        ensure!(opened["errorText"].is_null(), "{url}: {}", opened["errorText"]);
        Ok(())
    }

    /// The value of an expression; it may be a promise.
    pub(crate) fn eval(&mut self, expression: &str) -> Result<Value> {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let found = self.call("Runtime.evaluate", parameters)?;
        let wrong = &found["exceptionDetails"];
        ensure!(wrong.is_null(), "{expression}: {}", wrong["exception"]["description"]);
        Ok(found["result"]["value"].clone())
    }

    /// Waits until an expression is true; `what` says what is awaited.
    pub(crate) fn wait(&mut self, what: &str, expression: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while self.eval(&format!("Boolean({expression})"))? != json!(true) {
            if Instant::now() >= end {
                let text = self.eval("document.body.innerText.slice(0, 2000)")?;
                bail!(
                    "not within {} s: {what}; the page shows:\n{}",
                    limit.as_secs(),
                    text.as_str().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Sets the size of the screen and the colour scheme.
    pub(crate) fn look(&mut self, look: Look) -> Result<()> {
        let is_phone = look.width < 600;
        let size = json!({ "width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = json!({ "name": "prefers-color-scheme", "value": if look.dark { "dark" } else { "light" } });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [scheme] }))?;
        Ok(())
    }

    /// Presses a key, as a person does.
    pub(crate) fn press(&mut self, key: &str) -> Result<()> {
        let (name, code, text) = match key {
            "Tab" => ("Tab", 9, ""),
            "Enter" => ("Enter", 13, "\r"),
            "Escape" => ("Escape", 27, ""),
            "ArrowDown" => ("ArrowDown", 40, ""),
            "/" => ("/", 191, "/"),
            other => bail!("no key {other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", event)?;
        }
        Ok(())
    }

    /// Types a text into the focused element.
    pub(crate) fn type_text(&mut self, text: &str) -> Result<()> {
        self.call("Input.insertText", json!({ "text": text }))?;
        Ok(())
    }

    /// Writes a picture of the page as PNG; of all of it if `whole`.
    pub(crate) fn picture(&mut self, path: &Path, whole: bool) -> Result<()> {
        let parameters = json!({ "format": "png", "captureBeyondViewport": whole });
        let found = self.call("Page.captureScreenshot", parameters)?;
        let bytes = decoded(found["data"].as_str().context("a picture")?)?;
        Ok(std::fs::write(path, bytes)?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It has ended if the signal cannot be sent.
        let _ = process::signal(&self.child, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// The bytes of a text in Base64 (RFC 4648).
fn decoded(text: &str) -> Result<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.bytes().filter(|byte| *byte != b'=') {
        let value = DIGITS.iter().position(|known| *known == digit).context("a digit of Base64")?;
        bits = bits << 6 | u32::try_from(value)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff)?);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("/+8=", b"\xff\xef")]
        {
            assert_eq!(decoded(text).expect("Base64"), bytes, "{text}");
        }
        assert!(decoded("Zm9v!").is_err());
    }
}
