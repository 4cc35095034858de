//! `lunar serve`: serves the volumes of a command line under one target until a signal ends it.
//!
//! A configuration in memory is made from the command line. It is checked, planned and applied like the file of a
//! daemon.
//!
//! * `volumes`: its volumes
//! * here: the rest of it, and the service from its start to its end

mod volumes;

use crate::args::{self, How};
use crate::banner::{VolumeLine, banner};
use crate::daemon::stopping;
use crate::registry::Program;
use crate::{assembly, stats};
use anyhow::{Context, Result, anyhow, bail};
use lunar_control::apply::{MissingPolicy, apply};
use lunar_control::{Checked, Plan};
use lunar_core::unit::UnitId;
use lunar_engine::budget::HostLimits;
use lunar_engine::command_line::{Client, Draft, Given, Serving, Shown, TARGET};
use lunar_engine::engine::Engine;
use lunar_engine::volume::command_line::Options;
use lunar_engine::volume::metadata::state_folder;
use lunar_iscsi::registry::SESSIONS_MAX;
use lunar_reactor::heap::release_free_memory;
use lunar_reactor::log;
use lunar_reactor::log::Severity;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeSet;
use std::future::ready;
use std::io::Write;
use std::path::Path;
use volumes::{Drafting, Volumes};

/// Logins per second from one address: the largest limit of a configuration, because operators test with many logins.
const LOGIN_RATE: i64 = 10_000;
/// Characters of the serial number of an NVM subsystem (NVMe Base 2.0 5.17.2.1).
const SERIAL_BYTES: usize = 20;
/// Characters of the first volume's name in the alias of the target.
const ALIAS_CHARS: usize = 48;

/// The configuration of the service.
struct Setup {
    program: &'static Program,
    draft: Draft,
    checked: Checked,
    texts: Vec<String>,
    volumes: Volumes,
    iqn: String,
    nqn: String,
    how: How,
    /// Remarks for the operator before the start.
    remarks: Vec<String>,
    /// Whether any client that reaches a portal may use the volumes.
    is_open: bool,
}

/// Serves volumes with a program until a signal says stop.
///
/// # Errors
/// All errors of the start, in words that say what to do.
pub fn run(program: &'static Program, texts: Vec<String>, options: &Options, how: How) -> Result<()> {
    let state = state_folder();
    let setup = Setup::new(program, texts, options, how, &state)?;
    setup.volumes.hints.iter().chain(&setup.remarks).for_each(|remark| log!("{remark}"));
    log::set_up(Severity::Info, log::text_format());
    // The number of sessions is no choice of the operator.
    assembly::demand(&setup.checked.config, false).check(&HostLimits::here())?;
    // Before the threads, so that they inherit the mask and a signal during start-up is not lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let engine = setup.start(&state)?;
    let counted = engine.core_set().shared().stats.clone();
    let socket = setup.how.stats.as_deref().map(|path| stats::Socket::serve(path, counted)).transpose();
    let ready = socket.and_then(|socket| Ok((socket, setup.lines(&engine)?)));
    let (socket, lines) = match ready {
        Ok(ready) => ready,
        Err(why) => {
            engine.end()?;
            return Err(why);
        }
    };
    let text = banner(&lines, &setup.shown(&engine), setup.is_open);
    // A closed standard output is no reason to stop serving.
    let _ = std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush());
    drop(setup);
    release_free_memory();
    wait_for_stop(&mut signals);
    drop(socket);
    stopping(&mut signals, || Ok(engine.end()?))
}

impl Setup {
    /// The configuration made from a command line.
    fn new(program: &'static Program, texts: Vec<String>, options: &Options, how: How, state: &Path) -> Result<Self> {
        let iqn = how.name.clone().unwrap_or_else(|| args::default_name(&host_name(), &texts[0]));
        let nqn = how.nqn.clone().unwrap_or_else(|| args::subsystem_of(&iqn));
        let mut draft = Draft::default();
        server(&how, &mut draft);
        let volumes = Volumes::configure(&texts, options, &mut Drafting { program, state, draft: &mut draft })?;
        if how.metadata && !volumes.are_protected.contains(&true) {
            let why =
                "--metadata shows the protection information of blocks, and no volume keeps any: give --protection";
            bail!(why);
        }
        let groups = portal_groups(&how, &mut draft);
        target(&texts, (&iqn, &nqn), &groups, &volumes, &mut draft);
        let fronts = &how.fronts;
        let clients: Vec<Client> = fronts.iter().flat_map(|front| front.clients()).collect();
        let local: Vec<String> = fronts.iter().flat_map(|front| front.local_clients()).collect();
        let metadata: Vec<bool> = volumes.are_protected.iter().map(|protected| how.metadata && *protected).collect();
        let seen = crate::access::Seen { volumes: &volumes.names, metadata: &metadata };
        how.who.configure(&seen, (&clients, &local), &mut draft)?;
        let given = Given {
            groups: &groups,
            is_addressed: fronts.iter().any(|front| front.is_addressed()),
            advertise: &how.advertise,
            is_restricted: how.who.is_restricted(),
            user: how.who.secret_file.as_ref(),
        };
        for front in fronts {
            front.configure(&given, &mut draft)?;
        }
        let remarks = fronts.iter().flat_map(|front| front.remarks(&given)).collect();
        let is_open = how.advertise.is_empty() && !how.who.excludes() && clients.is_empty();
        let checked = draft.check(program.schema)?;
        draft.drop_keys();
        Ok(Self { program, draft, checked, texts, volumes, iqn, nqn, how, remarks, is_open })
    }

    /// Applies it to an empty target.
    fn start(&self, state: &Path) -> Result<Engine> {
        let mut engine = assembly::start_command_line(self.program, &self.checked.config, state, self.draft.origin())?;
        let plan = Plan::between(&Checked::empty(self.program.schema), &self.checked);
        let missing = MissingPolicy {
            may_be_missing: self.draft.optional().clone(),
            may_lack: BTreeSet::new(),
            retry: &mut |_, _| false,
        };
        match apply(&mut engine, &plan, &self.checked, missing, || Ok(())) {
            Ok(_) => {
                engine.wait_until_final();
                Ok(engine)
            }
            Err(refusal) => {
                engine.end()?;
                Err(anyhow!(refusal.reason()))
            }
        }
    }

    /// The lines of the volumes.
    fn lines(&self, engine: &Engine) -> Result<Vec<VolumeLine>> {
        let units: Vec<Option<UnitId>> = self.volumes.names.iter().map(|name| engine.unit_of(name)).collect();
        let texts = self.texts.clone();
        let lines = engine.core_set().cores().ask(0, move |core| {
            let line = |((lun, name), unit): ((u16, &String), Option<UnitId>)| {
                Some(match core.mesh.unit(unit?) {
                    Some(unit) => VolumeLine::of(lun, name, &unit),
                    None => VolumeLine::of_device(lun, name),
                })
            };
            ready((0..).zip(&texts).zip(units).filter_map(line).collect())
        });
        lines.wait().context("a core ended while it started")
    }

    fn shown(&self, engine: &Engine) -> Vec<Shown> {
        let chosen = engine.core_set().shared().fronts().iter().flat_map(|front| front.places());
        let mut sockets = self.draft.sockets().clone();
        sockets.extend(chosen.map(|(name, place)| (name, place.into())));
        let serving = Serving {
            iqn: &self.iqn,
            nqn: &self.nqn,
            portals: &engine.portals().iter().map(|(name, portal)| (name.clone(), portal.address)).collect(),
            advertise: self.how.advertise.first().copied(),
            sockets: &sockets,
        };
        self.how.fronts.iter().filter_map(|front| front.shown(&serving)).collect()
    }
}

/// The service itself, and its limits.
fn server(how: &How, draft: &mut Draft) {
    let mut server = draft.section("server");
    server.set_some("cores", how.cores.map(i64::from)).set("driver", how.driver.word());
    server.set("memory", format!("{}M", how.memory)).set("spin", format!("{}us", how.spin));
    server.set("drain", format!("{}s", how.drain));
    draft.section("limits").set("sessions", SESSIONS_MAX as i64).set("login-rate", LOGIN_RATE);
}

/// The portal groups, named after their tags.
fn portal_groups(how: &How, draft: &mut Draft) -> Vec<String> {
    let count = how.fronts.iter().map(|front| front.portal_groups()).max().unwrap_or(1);
    let groups: Vec<String> = (1..=count).map(|tag| tag.to_string()).collect();
    for (tag, group) in (1..).zip(&groups) {
        draft.object("portal-group", group).set("tag", Into::<i64>::into(tag));
    }
    groups
}

/// The one target, which is an NVM subsystem, too: with the serial number of the first volume.
fn target(texts: &[String], (iqn, nqn): (&str, &str), groups: &[String], volumes: &Volumes, draft: &mut Draft) {
    let serial = volumes.first.map(|uuid| format!("{:032x}", u128::from_be_bytes(uuid.0))[..SERIAL_BYTES].to_owned());
    let mut target = draft.object("target", TARGET);
    target.set("iqn", iqn).set("nqn", nqn).set("alias", alias(texts)).set("portal-groups", groups.to_vec());
    target.set_some("serial", serial);
}

/// TargetAlias (RFC 7143 13.6): the names of the volumes, in at most 255 bytes.
fn alias(texts: &[String]) -> String {
    let more = if texts.len() > 1 { format!(" and {} more", texts.len() - 1) } else { String::new() };
    let first: String = texts[0].chars().filter(|c| !c.is_control()).take(ALIAS_CHARS).collect();
    first + &more
}

/// Waits for the first stop signal. SIGHUP is none, because a terminal may be closed.
fn wait_for_stop(signals: &mut Signals) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return;
        }
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
