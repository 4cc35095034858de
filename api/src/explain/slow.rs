//! Where the time of slow commands went, the state of the network to their clients, and the negotiated parameters.

use super::{at, remedy};
use crate::control::Control;
use crate::handlers::add_tcp;
use crate::request::{ApiRequest, Outcome, Problem, Reply};
use lunar_control::api::{SessionView, TcpView};
use lunar_control::explain::{ExplanationView, Place, RemedyView, StepView};
use lunar_control::live::Later;
use lunar_control::negotiated::ParameterView;
use lunar_control::slow::SlowView;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Sessions whose network is shown, the worst first: more than an operator reads.
const SESSIONS_MAX: usize = 8;
/// One lost segment of so many is too many: the bound of `retransmits` of `lunar doctor`.
const LOST: u64 = 1000;
/// Fewer segments say nothing.
const SEGMENTS_MIN: u64 = 1000;
/// A limit of the sender that is worth a word, in microseconds.
const LIMITED: u64 = 1_000_000;

/// The sums of slow commands, in microseconds.
#[derive(Default)]
struct Sums {
    total: u64,
    network: u64,
    queue: u64,
    store: u64,
}

/// The TCP connections of a session together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Network {
    /// Segments that were sent, and those of them that were lost.
    sent: u64,
    lost: u64,
    /// The longest round trip of its connections, in microseconds.
    round_trip: u32,
    /// The smallest congestion window, in segments.
    window: u32,
    /// The time for which the window of the client, and the send buffer, limited the sender, in microseconds.
    window_limited: u64,
    buffer_limited: u64,
}

impl Network {
    fn of(connections: &[TcpView]) -> Option<Self> {
        let window = connections.iter().map(|tcp| tcp.congestion_window).min()?;
        let sum = |of: fn(&TcpView) -> u64| connections.iter().map(of).sum::<u64>();
        Some(Self {
            sent: sum(|tcp| tcp.segments_sent.into()),
            // A segment that had arrived was sent again for nothing: it was not lost.
            lost: sum(|tcp| tcp.retransmits.saturating_sub(tcp.duplicates).into()),
            round_trip: connections.iter().map(|tcp| tcp.rtt_microseconds).max().unwrap_or(0),
            window,
            window_limited: sum(|tcp| tcp.window_limited_microseconds),
            buffer_limited: sum(|tcp| tcp.buffer_limited_microseconds),
        })
    }

    fn is_lossy(&self) -> bool {
        self.sent >= SEGMENTS_MIN && self.lost * LOST > self.sent
    }

    fn words(&self) -> String {
        let Self { sent, lost, round_trip, window, .. } = self;
        let mut words = format!(
            "round trip {round_trip} us, congestion window {window} segments, {lost} of {sent} segments were lost"
        );
        let limits =
            [("the receive window of the client", self.window_limited), ("the send buffer", self.buffer_limited)];
        for (limit, time) in limits.iter().filter(|(_, time)| *time >= LIMITED) {
            words.push_str(&format!("; {limit} limited it for {} s", time / 1_000_000));
        }
        words
    }
}

/// `GET /v1/explain/slow/{name}`
pub fn slow(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let name = request.name();
    let log = control.slow();
    let is_it = |command: &&SlowView| {
        let of_host = command.initiator.as_ref().is_some_and(|initiator| initiator.eq_ignore_ascii_case(&name));
        command.volume.as_ref() == Some(&name) || of_host
    };
    let own: Vec<&SlowView> = log.commands.iter().filter(is_it).collect();
    let (mut explanation, is_of_client) = of_commands(&name, &own);
    let mut sessions = sessions_of(control, &name, &own);
    let tcp = control.tcp(None);
    Ok(Box::new(move || {
        add_tcp(&mut sessions, tcp());
        network(&sessions, &mut explanation);
        parameters(&sessions, is_of_client, &mut explanation);
        Reply::json(&explanation)
    }))
}

/// The sessions of a client of this name, of the clients of these commands, and of the clients of a volume.
fn sessions_of(control: &mut dyn Control, name: &str, commands: &[&SlowView]) -> Vec<SessionView> {
    let mut sessions = control.sessions();
    let groups: BTreeSet<String> = sessions.iter().filter_map(|session| session.group.clone()).collect();
    let maps = |group: &String| control.mapped(group).unwrap_or_default().values().any(|(volume, _)| volume == name);
    let groups: BTreeSet<String> = groups.into_iter().filter(maps).collect();
    let clients: BTreeSet<&str> = commands.iter().filter_map(|command| command.initiator.as_deref()).collect();
    sessions.retain(|session| {
        let client = session.initiator.as_str();
        let sees = session.group.as_ref().is_some_and(|group| groups.contains(group));
        !session.discovery && (client.eq_ignore_ascii_case(name) || clients.contains(client) || sees)
    });
    sessions
}

/// The explanation of these commands, and whether most of their time was that of the client and the network; `None`:
/// there are none.
fn of_commands(name: &str, own: &[&SlowView]) -> (ExplanationView, Option<bool>) {
    let Some(worst) = own.iter().max_by_key(|command| command.microseconds.total) else {
        let words = format!("no command of {name} was slow; `slow` in [logging] is the threshold");
        return (ExplanationView::of("slow", name, Vec::new(), words), None);
    };
    let mut sums = Sums::default();
    for command in own {
        let times = command.microseconds;
        sums.total += times.total;
        sums.network += times.network;
        sums.queue += times.queue;
        sums.store += times.store;
    }
    let share = |part: u64| part * 100 / sums.total.max(1);
    let (network, queue, store) = (share(sums.network), share(sums.queue), share(sums.store));
    let (part, advice, check) = match () {
        () if store >= network.max(queue) => {
            ("the store", "shows how busy the devices are", Some((Place::Server, ["iostat", "-x", "1"])))
        }
        () if network >= queue => {
            ("the client and the network", "shows retransmissions", Some((Place::Client, ["ss", "-t", "-i"])))
        }
        () => ("queues: more commands at once than the target executes, or a busy core", "", None),
    };
    let mean = sums.total / own.len() as u64 / 1000;
    let words = format!(
        "{} slow commands, {mean} ms in the mean: {store} % in the store, {network} % for the client and the network, \
         {queue} % in queues: look at {part}",
        own.len()
    );
    let times = worst.microseconds;
    let mut step = format!("the slowest was {} of {} ms", worst.command, times.total / 1000);
    let details = [("volume", worst.volume.as_deref()), ("of", worst.initiator.as_deref())];
    details.iter().filter_map(|(word, value)| Some((word, (*value)?))).for_each(|(word, value)| {
        step.push_str(&format!(", {word} {value}"));
    });
    step.push_str(&format!(", {} {}", worst.ending, at(worst.milliseconds / 1000)));
    let mut explanation = ExplanationView::of("slow", name, vec![StepView::failed(step)], words);
    if let Some((place, command)) = check {
        explanation.remedies.extend(remedy(place, advice, command));
    }
    let log = ["lunar", "log", "--slow"];
    explanation.remedies.extend(remedy(Place::Server, "lists the slow commands", log));
    (explanation, Some(network > store && network >= queue))
}

/// The negotiated parameters of a session in words; `None`: its transport negotiates nothing.
fn negotiated(SessionView { id, source, parameters, .. }: &SessionView) -> Option<String> {
    let all: Vec<String> = parameters.iter().map(ToString::to_string).collect();
    (!all.is_empty()).then(|| format!("{id} from {source} has negotiated: {}", all.join(", ")))
}

/// The parameters of sessions that make commands slow: words, and the commands that change them.
fn costs<'a>(sessions: &'a [SessionView]) -> impl Iterator<Item = (String, &'a [RemedyView])> {
    sessions.iter().flat_map(|SessionView { id, initiator, parameters, .. }| {
        let cost = move |parameter: &'a ParameterView| {
            let cost = parameter.cost.as_ref()?;
            Some((format!("{initiator} ({id}): {parameter}: {}", cost.words), &cost.remedies[..]))
        };
        parameters.iter().filter_map(cost)
    })
}

/// The negotiated parameters of sessions, and those of them that make commands slow, in words.
pub(super) fn facts(sessions: &[SessionView]) -> Vec<String> {
    let sessions = &sessions[..sessions.len().min(SESSIONS_MAX)];
    sessions.iter().filter_map(negotiated).chain(costs(sessions).map(|(words, _)| words)).collect()
}

/// Adds the negotiated parameters of sessions: a step for one that makes commands slow whose time was that of the
/// client and the network.
fn parameters(sessions: &[SessionView], is_of_client: Option<bool>, explanation: &mut ExplanationView) {
    let mut sessions = sessions.to_vec();
    sessions.sort_by_key(|session| !session.parameters.iter().any(|parameter| parameter.cost.is_some()));
    sessions.truncate(SESSIONS_MAX);
    explanation.near.extend(sessions.iter().filter_map(negotiated));
    let mut remedies: Vec<RemedyView> = Vec::new();
    for (words, own) in costs(&sessions) {
        match is_of_client {
            Some(true) => {
                if remedies.is_empty() {
                    explanation.words.push_str(&format!("; {words}"));
                }
                explanation.well = false;
                explanation.steps.push(StepView::failed(words));
            }
            // A slow store is no reason to change the client.
            Some(false) => {
                explanation.near.push(words);
                continue;
            }
            None => explanation.near.push(words),
        }
        // Clients of one target have the same commands.
        remedies.extend(own.iter().filter(|remedy| !remedies.contains(remedy)).cloned().collect::<Vec<_>>());
    }
    explanation.remedies.splice(0..0, remedies);
}

/// Adds the state of the TCP connections of these sessions: a step for one that loses segments.
fn network(sessions: &[SessionView], explanation: &mut ExplanationView) {
    let known = sessions.iter().filter_map(|session| Some((session, Network::of(&session.tcp)?)));
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|(_, network)| (Reverse(network.is_lossy()), Reverse(network.lost), Reverse(network.round_trip)));
    for (SessionView { id, initiator, source, .. }, network) in known.into_iter().take(SESSIONS_MAX) {
        let words = format!("the network to {initiator} at {source} ({id}): {}", network.words());
        if network.is_lossy() {
            explanation.well = false;
            explanation.steps.push(StepView::failed(words));
            let command = ["lunar", "session", "show", id];
            explanation.remedies.extend(remedy(Place::Server, "shows the connection that loses segments", command));
        } else {
            explanation.near.push(words);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_control::slow::SlowTimes;

    fn session(id: &str, tcp: TcpView) -> SessionView {
        SessionView {
            id: id.to_owned(),
            protocol: "iscsi",
            discovery: false,
            initiator: "iqn.a".to_owned(),
            source: "192.0.2.7:4711".to_owned(),
            target: None,
            group: None,
            portal_group: None,
            user: None,
            seconds: 0,
            parameters: Vec::new(),
            tcp: vec![tcp],
        }
    }

    fn tcp(sent: u32, again: u32, duplicates: u32) -> TcpView {
        let (rtt_microseconds, congestion_window) = (250, 10);
        let retransmits = again;
        TcpView {
            rtt_microseconds,
            congestion_window,
            segments_sent: sent,
            retransmits,
            duplicates,
            ..TcpView::default()
        }
    }

    #[test]
    fn a_connection_that_loses_segments_is_a_step_and_the_others_are_facts() {
        let limited = TcpView { window_limited_microseconds: 3_000_000, ..tcp(20_000, 30, 20) };
        let sessions = [session("iscsi-1", limited), session("iscsi-2", tcp(10_000, 12, 1))];
        let (mut explanation, _) = of_commands("disk", &[]);
        network(&sessions, &mut explanation);
        let steps: Vec<_> = explanation.steps.iter().map(|step| step.words.as_str()).collect();
        let lossy = "the network to iqn.a at 192.0.2.7:4711 (iscsi-2): round trip 250 us, congestion window 10 \
                     segments, 11 of 10000 segments were lost";
        assert_eq!((explanation.well, steps), (false, vec![lossy]));
        let [fact] = &explanation.near[..] else { panic!("{:?}", explanation.near) };
        assert!(fact.ends_with("10 of 20000 segments were lost; the receive window of the client limited it for 3 s"));
        assert_eq!(explanation.remedies[0].command, "lunar session show iscsi-2");
    }

    #[test]
    fn few_segments_and_sessions_without_tcp_say_nothing() {
        let mut none = session("vfio-1", tcp(0, 0, 0));
        none.tcp.clear();
        let (mut explanation, _) = of_commands("disk", &[]);
        network(&[none, session("iscsi-1", tcp(999, 500, 0))], &mut explanation);
        assert!(explanation.well && explanation.steps.is_empty());
        assert_eq!(explanation.near.len(), 1);
    }

    fn slow(network: u64, store: u64) -> SlowView {
        let microseconds = SlowTimes { total: 900_000, network, queue: 0, store };
        SlowView {
            milliseconds: 0,
            core: 0,
            volume: Some("disk".to_owned()),
            protocol: Some("iscsi"),
            target: None,
            initiator: Some("iqn.a".to_owned()),
            command: "WRITE(16)",
            class: "write",
            lba: None,
            blocks: None,
            bytes: None,
            microseconds,
            in_flight: 1,
            ending: "done",
        }
    }

    #[test]
    fn a_parameter_is_the_reason_if_the_time_is_that_of_the_client() {
        let waits = ParameterView::switch("ImmediateData", false).costs(true, "each write waits");
        let waits = waits.mended("sets it", ["iscsiadm", "-v", "Yes"]);
        let parameters_ = vec![ParameterView::new("FirstBurstLength", 65_536), waits];
        let first = SessionView { parameters: Vec::new(), ..session("vfio-1", tcp(0, 0, 0)) };
        let second = SessionView { parameters: parameters_, ..session("iscsi-2", tcp(0, 0, 0)) };
        let sessions = [first, second];
        let explained = |commands: &[&SlowView]| {
            let (mut explanation, is_of_client) = of_commands("disk", commands);
            parameters(&sessions, is_of_client, &mut explanation);
            explanation
        };
        let cost = "iqn.a (iscsi-2): ImmediateData No: each write waits".to_owned();
        let facts = "iscsi-2 from 192.0.2.7:4711 has negotiated: FirstBurstLength 65536, ImmediateData No".to_owned();
        let of_client = explained(&[&slow(800_000, 100_000)]);
        assert_eq!((of_client.well, of_client.steps.len(), &of_client.near), (false, 2, &vec![facts.clone()]));
        assert!(of_client.words.ends_with(&format!("; {cost}")) && of_client.steps[1].words == cost);
        assert_eq!(of_client.remedies[0].command, "iscsiadm -v Yes");
        let of_store = explained(&[&slow(100_000, 800_000)]);
        assert_eq!((of_store.steps.len(), &of_store.near), (1, &vec![facts.clone(), cost.clone()]));
        assert!(of_store.remedies.iter().all(|remedy| remedy.command != "iscsiadm -v Yes"));
        let of_none = explained(&[]);
        assert_eq!((of_none.well, &of_none.near, of_none.remedies.len()), (true, &vec![facts, cost], 1));
    }
}
