//! A shelf on its link: takes frames, and answers them.

use super::core::Core;
use super::job::{Job, Origin, write_data};
use super::station::Station;
use crate::directory::{Shelf, SlotVolume, View};
use crate::identify;
use crate::limits::{
    ANSWERS_KEPT, ANSWERS_MAX, COMMANDS_MAX, FIRST_ANSWERS, REFUSALS_MAX, REPLACED_MAX, STATION_ANSWERS_MAX,
    STATION_IDLE_MAX, STATIONS_MAX, may_take,
};
use crate::order::Arrival;
use crate::schema::WORD;
use crate::target::{
    ATA_ANSWER_LEN, Ata, Registers, Request, Target, Verdict, ata_answer, config_answer, decide, error_answer,
    sectors_of,
};
use crate::wire::{
    ABORTED, ALL_SHELVES, ALL_SLOTS, Address, AtaPart, DEVICE_FAULT, ETHER_TYPE, ErrorCode, FRAME_MIN, Header,
};
use lunar_core::access::refusal::RefusalCode;
use lunar_core::mem::Sg;
use lunar_core::time::Instant;
use lunar_core::unit::UnitId;
use lunar_engine::link_ports::PortSession;
use lunar_link::{Frame, HEADER_LEN, Header as EthernetHeader, Link, LinkConfig, MacAddress, OpenedLink, Rate};
use lunar_reactor::end::End;
use lunar_reactor::log;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromBytes;

/// The time between two checks for silent stations.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);
/// The periods of the rates of answers and of reported refusals.
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The host that the stations of a link are, as far as they share memory: an address that no client has, because it is
/// in no block that is assigned (0100::/16).
fn host(link: u64) -> IpAddr {
    let [.., high, low] = link.to_be_bytes();
    Ipv6Addr::new(0x0100, 0xa0e, 0, u16::from_be_bytes([high, low]), 0, 0, 0, 0).into()
}

/// A shelf on its link.
pub(super) struct Endpoint {
    pub(super) core: Rc<Core>,
    config: LinkConfig,
    link: RefCell<Rc<Link>>,
    /// `None` until a configuration is published: frames are ignored.
    shelf: RefCell<Option<Rc<Shelf>>>,
    stations: RefCell<BTreeMap<MacAddress, Rc<Station>>>,
    answers: RefCell<Rate>,
    refusals: RefCell<Rate>,
    replaced: RefCell<Rate>,
    /// The host that all stations of this link are, as far as they share memory: their addresses can be forged.
    host: IpAddr,
    closed: End,
}

impl Endpoint {
    /// Attaches a link to the core and takes frames from now on.
    pub(super) fn start(core: &Rc<Core>, config: LinkConfig, opened: OpenedLink) -> std::io::Result<Rc<Self>> {
        let link = Link::attach(core.reactor(), opened)?;
        let answers = Rate::new(SECOND, ANSWERS_MAX, STATION_ANSWERS_MAX);
        let endpoint = Rc::new(Self {
            core: core.clone(),
            config,
            link: RefCell::new(link),
            shelf: RefCell::default(),
            stations: RefCell::default(),
            answers: RefCell::new(answers.keeping(ANSWERS_KEPT, FIRST_ANSWERS)),
            refusals: RefCell::new(Rate::new(MINUTE, REFUSALS_MAX, 1)),
            replaced: RefCell::new(Rate::new(SECOND, REPLACED_MAX, 1)),
            host: host(core.number()),
            closed: End::default(),
        });
        let (receiver, idle) = (endpoint.clone(), endpoint.clone());
        core.reactor().spawn(async move { receiver.receive().await });
        core.reactor().spawn(async move { idle.forget_silent().await });
        Ok(endpoint)
    }

    fn link(&self) -> Rc<Link> {
        self.link.borrow().clone()
    }

    /// Takes frames until the end. A link that fails, for instance because its interface was removed, is opened again.
    async fn receive(self: Rc<Self>) {
        let name = self.config.address.to_string();
        while !self.closed.has_come() {
            let link = self.link();
            let Err(why) = link.receive(|frame| self.take(&frame), || ()).await else { return };
            link.close();
            let trouble = format!("link {name} of an AoE shelf has failed, and is opened again: {why:?}");
            log!(error, "{trouble}");
            self.report(Some(trouble));
            let (reactor, closed) = (self.core.reactor(), &self.closed);
            let attach = |opened| Link::attach(reactor, opened);
            let again = self.core.common.ports.open_again(&self.config, (reactor, closed), attach).await;
            let Some(link) = again else { return };
            self.link.replace(link);
            self.report(None);
            log!("link {name} of an AoE shelf is open again");
            self.announce(None);
        }
    }

    fn report(&self, trouble: Option<String>) {
        if let Some(shelf) = &*self.shelf.borrow() {
            self.core.common.ports.set_trouble(&shelf.name, trouble);
        }
    }

    /// Serves this shelf from now on. `resized` are units whose size has changed.
    pub(super) fn publish(&self, shelf: Shelf, resized: &BTreeSet<UnitId>) {
        let shelf = Rc::new(shelf);
        let before = self.shelf.replace(Some(shelf.clone()));
        let stations: Vec<Rc<Station>> = self.stations.borrow().values().cloned().collect();
        for station in stations {
            match shelf.view_of(station.mac) {
                Some(view) => {
                    station.set_view(view.clone(), &shelf);
                    if let Some(info) = self.core.common.ports.sessions().get_mut(&(shelf.name.clone(), station.mac)) {
                        info.group = view.group.clone();
                        info.target.clone_from(&shelf.target);
                    }
                }
                None => {
                    self.forget(station.mac);
                }
            }
        }
        let is_new = |(address, unit, _): &(Address, UnitId, Vec<MacAddress>)| {
            let known = before.as_ref().map(|before| before.announced()).unwrap_or_default();
            !known.iter().any(|(known, known_unit, _)| (known, known_unit) == (address, unit))
        };
        let announced: Vec<_> = shelf.announced().into_iter().filter(is_new).map(|(address, ..)| address).collect();
        self.announce(Some((&announced, resized)));
    }

    /// Whether a station sees this unit in the slot of this address now.
    pub(super) fn shows(&self, station: MacAddress, address: Address, unit: UnitId) -> bool {
        let shelf = self.shelf.borrow();
        let view =
            shelf.as_ref().filter(|shelf| shelf.number == address.shelf).and_then(|shelf| shelf.view_of(station));
        view.is_some_and(|view| view.slots.get(&address.slot).is_some_and(|shown| shown.unit == unit))
    }

    /// The units that stations see.
    pub(super) fn units(&self) -> BTreeSet<UnitId> {
        self.shelf.borrow().as_ref().map(|shelf| shelf.units()).unwrap_or_default()
    }

    /// Tells stations of these slots, and of those with these units; `None`: of all slots.
    fn announce(&self, which: Option<(&[Address], &BTreeSet<UnitId>)>) {
        let Some(shelf) = self.shelf.borrow().clone() else { return };
        for (address, unit, mut stations) in shelf.announced() {
            let is_told = which.is_none_or(|(slots, units)| slots.contains(&address) || units.contains(&unit));
            let state = self.core.volume(unit).and_then(|volume| volume.slot(address)).filter(|_| is_told);
            let Some(state) = state else { continue };
            let state = state.borrow();
            if !state.masks.is_empty() {
                stations.clone_from(&state.masks);
            }
            let target = Target { address, state: &state, sectors: self.sectors() };
            let answer = config_answer(None, &target, &state.string);
            stations.iter().for_each(|station| self.send(*station, &answer));
        }
    }

    /// The most sectors of a request.
    pub(super) fn sectors(&self) -> u8 {
        sectors_of(self.link.borrow().mtu())
    }

    /// Takes a frame.
    fn take(self: &Rc<Self>, frame: &Frame) {
        let source = frame.header.source;
        let (Some(shelf), Some(request)) = (self.shelf.borrow().clone(), Request::parse(source, &frame.payload)) else {
            return;
        };
        let named = request.header.address();
        let is_ours = named.shelf == shelf.number || named.shelf == ALL_SHELVES;
        if !is_ours || self.core.draining.has_come() || self.closed.has_come() {
            return;
        }
        let known = self.stations.borrow().get(&source).cloned();
        let view = known.map(|station| station.view()).or_else(|| shelf.view_of(source).cloned());
        let Some(view) = view else { return self.refuse(source, &shelf) };
        match named.slot {
            ALL_SLOTS => view.slots.iter().for_each(|slot| self.take_for(frame, &request, &shelf, (&view, slot))),
            slot => {
                let found = view.slots.get_key_value(&slot);
                found.into_iter().for_each(|slot| self.take_for(frame, &request, &shelf, (&view, slot)));
            }
        }
    }

    /// Takes a frame for one slot.
    fn take_for(
        self: &Rc<Self>,
        frame: &Frame,
        request: &Request<'_>,
        shelf: &Shelf,
        (view, (slot, volume)): (&Arc<View>, (&u8, &SlotVolume)),
    ) {
        let address = Address { shelf: shelf.number, slot: *slot };
        let Some(state) = self.core.volume(volume.unit).and_then(|volume| volume.slot(address)) else { return };
        let verdict = decide(request, &Target { address, state: &state.borrow(), sectors: self.sectors() });
        let verdict = match verdict {
            Verdict::Ignore => return,
            Verdict::Ata(ata) => return self.take_ata(frame, request, shelf, (view, address, *volume, ata)),
            verdict => verdict,
        };
        if !self.answers.borrow_mut().admit(request.source, self.core.reactor().now()) {
            return;
        }
        match verdict {
            Verdict::Answer(answer) => self.send(request.source, &answer),
            verdict => self.change(frame, request, (address, volume.unit), &verdict),
        }
    }

    /// Takes an ATA command.
    fn take_ata(
        self: &Rc<Self>,
        frame: &Frame,
        request: &Request<'_>,
        shelf: &Shelf,
        (view, address, volume, ata): (&Arc<View>, Address, SlotVolume, Ata),
    ) {
        let Some(station) = self.station(request.source, shelf, view) else { return };
        let Ok((part, _)) = AtaPart::read_from_prefix(request.body) else { return };
        let header = *request.header;
        let Some(attachment) = station.attachment(&self.core.set, shelf, (address.slot, volume)) else {
            let registers = Registers::failed(DEVICE_FAULT, ABORTED);
            return self.answer_ata(station.mac, (&header, address, &part), registers, Sg::default());
        };
        if ata == Ata::Identify {
            let (Some(limits), Some(unit)) = (attachment.limits(), attachment.unit()) else { return };
            let data = self.core.reactor().arena().copy(&identify::data(&unit.unit.identity, &limits));
            return data.into_iter().for_each(|data| {
                station.usage.succeed();
                self.answer_ata(station.mac, (&header, address, &part), Registers::GOOD, data.into());
            });
        }
        let data = match ata {
            Ata::Write(sectors) => match write_data(&frame.payload, sectors) {
                Some(data) => Some(data),
                None => return,
            },
            _ => None,
        };
        let core = &self.core;
        if !may_take(station.commands.get(), COMMANDS_MAX.saturating_sub(core.commands.get())) {
            core.reactor().stats().task_set_full.add(1);
            attachment.task_set_full();
            return;
        }
        let origin = Origin { endpoint: self.clone(), station, attachment, address };
        let Ok(share) = origin.share(ata, frame.payload.len()) else {
            core.reactor().stats().task_set_full.add(1);
            return origin.attachment.task_set_full();
        };
        self.execute(Job::new((origin, share), header, (part, ata), data));
    }

    /// Starts a command, a write when it has its turn.
    fn execute(&self, job: Job) {
        let core = &self.core;
        let job = match job.write() {
            None => job,
            Some(write) if job.has_ended(&write) => return job.repeat(),
            Some(write) => {
                let Some(volume) = core.volume(job.attachment().id) else { return };
                let arrival = volume.writes.borrow_mut().arrive(write, job);
                let Arrival::Execute(id, job) = arrival else { return };
                job.set_turn(id);
                job
            }
        };
        if job.run_now() {
            return;
        }
        // The job is one of the commands of its station. Without a slot the station sends it again.
        let has_slot = may_take(job.station().commands.get() - 1, core.slots.free());
        let refused = if has_slot { core.slots.start(job).err() } else { Some(job) };
        if let Some(job) = refused {
            core.reactor().stats().task_set_full.add(1);
            job.attachment().task_set_full();
        }
    }

    /// The station of this address, which is remembered from its first ATA command on.
    fn station(&self, mac: MacAddress, shelf: &Shelf, view: &Arc<View>) -> Option<Rc<Station>> {
        let core = &self.core;
        let now = core.reactor().now();
        if let Some(station) = self.stations.borrow().get(&mac) {
            station.usage.see(now);
            return Some(station.clone());
        }
        if self.stations() >= STATIONS_MAX && !self.evict(mac, now) {
            return None;
        }
        let memory = core.reactor().arena().join(self.host);
        let station = Station::new(mac, core.number(), view.clone(), (now, memory));
        self.stations.borrow_mut().insert(mac, station.clone());
        let stats = core.reactor().stats();
        stats.sessions.add(1);
        stats.logins.add(1);
        station.count(stats.hosts.session(WORD, &shelf.target, &mac.to_string()));
        let link = self.config.address.to_string();
        let info = PortSession { since: now, source: link, group: view.group.clone(), target: shelf.target.clone() };
        core.common.ports.sessions().insert((shelf.name.clone(), mac), info);
        let words =
            format!("station {mac} uses shelf {} of target {}, group {}", shelf.number, shelf.target, view.group);
        core.common.ports.notify(&mac, None, &words);
        Some(station)
    }

    /// Forgets a station that is not busy, for the new one of this address; returns whether there was one.
    fn evict(&self, new: MacAddress, now: Instant) -> bool {
        if !self.replaced.borrow_mut().admit(new, now) {
            return false;
        }
        let place = |station: &Rc<Station>| Some((station.eviction_order(now)?, station.mac));
        let first = self.stations.borrow().values().filter_map(place).min();
        first.is_some_and(|(_, mac)| self.forget(mac))
    }

    /// A station belongs to no group: it gets no answer.
    fn refuse(&self, mac: MacAddress, shelf: &Shelf) {
        let stats = self.core.reactor().stats();
        stats.logins_refused.add(1);
        stats.hosts.refused(WORD, RefusalCode::NotShown.word(), &shelf.target, &mac.to_string());
        if self.refusals.borrow_mut().admit(mac, self.core.reactor().now()) {
            let words = format!("station {mac} belongs to no group of target {}: its frames are ignored", shelf.target);
            self.core.common.ports.notify(&mac, Some((RefusalCode::NotShown, &shelf.target)), &words);
        }
    }

    /// Forgets a station; returns whether it was known. Its next command makes it known again, if it may.
    pub(super) fn forget(&self, mac: MacAddress) -> bool {
        let station = self.stations.borrow_mut().remove(&mac);
        if let Some(station) = &station {
            station.revoke();
            self.core.reactor().stats().sessions.sub(1);
            if let Some(shelf) = &*self.shelf.borrow() {
                self.core.common.ports.sessions().remove(&(shelf.name.clone(), mac));
            }
        }
        station.is_some()
    }

    /// Forgets the stations of these groups.
    pub(super) fn forget_groups(&self, groups: &BTreeSet<Arc<str>>) {
        let stations: Vec<Rc<Station>> = self.stations.borrow().values().cloned().collect();
        for station in stations.iter().filter(|station| groups.contains(&station.view().group)) {
            self.forget(station.mac);
        }
    }

    async fn forget_silent(self: Rc<Self>) {
        while self.closed.unless(self.core.reactor().sleep(IDLE_INTERVAL)).await.is_some() {
            let now = self.core.reactor().now();
            let stations: Vec<Rc<Station>> = self.stations.borrow().values().cloned().collect();
            let is_silent = |station: &&Rc<Station>| {
                station.commands.get() == 0 && now.since(station.usage.last_seen()) >= STATION_IDLE_MAX
            };
            for station in stations.iter().filter(is_silent) {
                self.forget(station.mac);
            }
        }
    }

    /// Sends the answer of an ATA command, with the data of a read.
    pub(super) fn answer_ata(
        &self,
        to: MacAddress,
        (request, address, part): (&Header, Address, &AtaPart),
        registers: Registers,
        data: Sg,
    ) {
        let mut bytes = [0; FRAME_MIN];
        let len = HEADER_LEN + ATA_ANSWER_LEN;
        bytes[..HEADER_LEN].copy_from_slice(&self.ethernet(to));
        bytes[HEADER_LEN..len].copy_from_slice(&ata_answer(request, address, part, registers));
        let len = if data.is_empty() { FRAME_MIN } else { len };
        if let Some(head) = self.core.chunk(&bytes[..len]) {
            let mut frame: Sg = head.into();
            frame.append(data);
            self.link.borrow().send(frame);
        }
    }

    /// Sends the answer that a request failed.
    pub(super) fn answer_error(&self, to: MacAddress, request: &Header, address: Address, code: ErrorCode) {
        self.send(to, &error_answer(request, address, code));
    }

    /// Sends a frame with this payload.
    pub(super) fn send(&self, to: MacAddress, payload: &[u8]) {
        let bytes = [&self.ethernet(to)[..], payload].concat();
        // Without memory the answer is lost, and the station sends its request again.
        if let Some(frame) = self.core.reactor().arena().copy(&bytes) {
            self.link.borrow().send(frame.into());
        }
    }

    fn ethernet(&self, destination: MacAddress) -> [u8; HEADER_LEN] {
        EthernetHeader { destination, source: self.link.borrow().mac(), ether_type: ETHER_TYPE }.bytes()
    }

    pub(super) fn stations(&self) -> usize {
        self.stations.borrow().len()
    }

    /// Closes it: no frame is taken and none is sent any more.
    pub(super) fn close(&self) {
        self.closed.come();
        let stations: Vec<MacAddress> = self.stations.borrow().keys().copied().collect();
        for mac in stations {
            self.forget(mac);
        }
        self.report(None);
        self.link.borrow().close();
    }
}

/// Changes that are in progress are counted until this is dropped.
pub(super) struct Counted<'a>(pub(super) &'a Cell<usize>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
