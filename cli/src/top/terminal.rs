//! The terminal of `lunar top`: keys, readings from a thread of their own, and the end.

use super::draw::{Look, draw};
use super::read;
use super::screen::{Next, Reading, Screen};
use crate::call::Service;
use crate::failure::Failure;
use lunar_control::value::{Period, Textual};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// How often it is looked for readings and signals while no key is pressed.
const TICK: Duration = Duration::from_millis(100);

/// Shows the screen until the user leaves it, or the process is told to end.
pub(super) fn run(service: &Service, mut screen: Screen, interval: Duration) -> Result<(), Failure> {
    // A service that is not there now is a failure as in other commands; later it may come back.
    screen.take(Ok(read(service)?));
    let (sender, readings) = sync_channel(1);
    let own = service.clone();
    std::thread::Builder::new()
        .name("readings".into())
        .spawn(move || follow(&own, interval, &sender))
        .map_err(|why| Failure::new(format!("a thread cannot be started: {why}")))?;
    let ends = Arc::new(AtomicBool::new(false));
    // SIGHUP ends the process: without its terminal, there is nothing to restore, and a wait for keys never ends. The
    // second of the other signals ends it, too.
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_default(signal, ends.clone())
            .and_then(|_| flag::register(signal, ends.clone()))
            .map_err(|why| Failure::new(format!("signals cannot be handled: {why}")))?;
    }
    let shown = ratatui::try_init()
        .and_then(|mut terminal| show(&mut terminal, &mut screen, &readings, &ends, &Period(interval).text()));
    ratatui::restore();
    shown.map_err(|why| Failure::new(format!("the terminal cannot be used: {why}")))
}

/// Reads until the receiver is gone.
fn follow(service: &Service, interval: Duration, sender: &SyncSender<Result<Reading, Failure>>) {
    loop {
        std::thread::sleep(interval);
        if sender.send(read(service)).is_err() {
            return;
        }
    }
}

/// The look that the environment asks for.
fn look() -> Look {
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(of).into_iter().find(|value| !value.is_empty()).unwrap_or_default();
    let locale = locale.to_lowercase();
    Look {
        has_colour: of("NO_COLOR").is_empty() && of("TERM") != "dumb",
        has_blocks: locale.contains("utf-8") || locale.contains("utf8"),
    }
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    readings: &Receiver<Result<Reading, Failure>>,
    ends: &AtomicBool,
    interval: &str,
) -> std::io::Result<()> {
    let look = look();
    let mut is_new = true;
    while !ends.load(Ordering::Relaxed) {
        while let Ok(reading) = readings.try_recv() {
            screen.take(reading);
            is_new = true;
        }
        if is_new {
            terminal.draw(|frame| draw(frame, screen, look, interval))?;
            is_new = false;
        }
        if !event::poll(TICK)? {
            continue;
        }
        is_new = true;
        let is_last = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => screen.key(key) == Next::Quit,
            _ => false,
        };
        if is_last {
            return Ok(());
        }
    }
    Ok(())
}
