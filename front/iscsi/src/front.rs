//! iSCSI as a front of the engine: the directory of targets as a configuration says it, and sessions for operators.

use crate::authenticator::Authenticator;
use crate::authenticator::audit::AuditRecord;
use crate::chap::Algorithm;
use crate::command_line::IscsiOptions;
use crate::config::{self, Transport};
use crate::directory::{self, Directory, Moved, Portal, TargetEntry};
use crate::displaced::SharedName;
use crate::dry_run;
use crate::iser::schema::Iser;
use crate::keys::Parameters;
use crate::registry::{Registry, SESSIONS_MAX, SessionLocation, SessionRecord};
use crate::schema::{self, is_listed};
use crate::serve::{self, Peers};
use lunar_control::Config;
use lunar_control::api::SessionView;
use lunar_control::common_sections::{self, Hash};
use lunar_control::explain::{LoginQuestion, LoginVerdict};
use lunar_control::live::Later;
use lunar_control::negotiated::ParameterView;
use lunar_engine::core_set::context::CoreContext;
use lunar_engine::core_set::front_handle::FrontHandle;
use lunar_engine::core_set::mesh::CoreMesh;
use lunar_engine::core_set::message::FrontJob;
use lunar_engine::core_set::shared::Shared;
use lunar_engine::error::EngineError;
use lunar_engine::front::{Front, FrontOnCore, FrontPaths, FrontRuntime, Incoming, PortalRef, TcpState};
use lunar_engine::host::Host;
use lunar_engine::link_ports::RdmaSection;
use lunar_engine::notice::{AuditSink, Notice, NoticeTopic, RefusedLogin, SERVICE};
use lunar_engine::published_config::PublishedConfig;
use lunar_engine::registry::FrontEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The name of the front, with which the IDs of its sessions begin.
pub const NAME: &str = schema::WORD;

/// How long a session that an operator ends may take: commands in the store have to come back first.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(30);

/// iSCSI, in the registry.
#[derive(Clone, Copy, Debug)]
pub struct Iscsi;

/// Its line in a registry.
pub const ENTRY: FrontEntry = FrontEntry { front: &Iscsi, schema: &schema::FRONT, options: Some(&IscsiOptions) };

impl Front for Iscsi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&self, index: usize, shared: &Arc<Shared>) -> Result<Arc<dyn FrontRuntime>, EngineError> {
        let (host, audit) = (shared.host.clone(), shared.audit.clone());
        let directory = Directory::new(shared.config.drain);
        let random = move |into: &mut [u8]| host.random(into);
        let sink = move |record: &AuditRecord| tell(&*audit, record);
        let throttle = shared.throttle.clone();
        let authenticator = Authenticator::with_throttle(directory, throttle, Box::new(random), Box::new(sink));
        authenticator.report_refusals(&shared.hosts, &shared.refusal_sink);
        let (registry, host) = (Arc::default(), shared.host.clone());
        Ok(Arc::new(IscsiRuntime { index, authenticator, registry, host, rdma: Arc::default() }))
    }

    fn paths(&self, _config: &Config, _runtime: &Path) -> FrontPaths {
        FrontPaths::default()
    }
}

/// The ID of a session in the API.
fn session_id(transport: Transport, tsih: u16) -> String {
    format!("{}-{tsih}", transport.word())
}

/// Tells operators of a login.
fn tell(audit: &AuditSink, record: &AuditRecord) {
    let (topic, subject) = match record {
        AuditRecord::Login(login, Ok(())) => (NoticeTopic::Login, &*login.initiator),
        AuditRecord::Login(login, Err(_)) => (NoticeTopic::Refusal, &*login.initiator),
        AuditRecord::Repeated(..) => (NoticeTopic::Login, SERVICE),
        AuditRecord::Omitted(_) => (NoticeTopic::Refusal, SERVICE),
    };
    let refusal = match record {
        AuditRecord::Login(login, Err(why)) => Some(RefusedLogin {
            transport: login.transport.word(),
            code: why.code(),
            source: Some(login.source.ip()),
            target: login.target.as_deref().unwrap_or_default(),
            user: login.user.as_deref().unwrap_or_default(),
        }),
        _ => None,
    };
    audit(&Notice { refusal, ..Notice::new(topic, subject, record) });
}

/// Bytes of a data segment below which a transfer becomes many PDUs: the default of the standard, which initiators in
/// use exceed.
const SEGMENT_MIN: u32 = 16 << 10;

/// The negotiated parameters of a session.
fn negotiated(record: &SessionRecord) -> Vec<ParameterView> {
    let Parameters { immediate_data, initial_r2t, max_send_segment, .. } = record.parameters;
    let target = record.login.target.as_deref().unwrap_or_default();
    let set = |parameter: ParameterView, key: &str, value: &str| {
        let node = ["iscsiadm", "-m", "node", "-T", target];
        let update = ["-o", "update", "-n", key, "-v", value];
        parameter
            .mended("sets it for later logins", node.into_iter().chain(update))
            .mended("ends the session", node.into_iter().chain(["--logout"]))
            .mended("begins another one", node.into_iter().chain(["--login"]))
    };
    // Data that a command cannot bring along, and that the initiator may not send without an R2T.
    let waits = !immediate_data && initial_r2t;
    let round_trip = "each write waits for an R2T before it sends data: one more round trip";
    let immediate = ParameterView::switch("ImmediateData", immediate_data).costs(waits, round_trip);
    let parameters = &record.parameters;
    if record.location.transport.is_rdma() {
        return vec![
            ParameterView::switch("ImmediateData", immediate_data),
            ParameterView::new("TargetRecvDataSegmentLength", parameters.target_recv_segment),
            ParameterView::new("InitiatorRecvDataSegmentLength", parameters.initiator_recv_segment),
            ParameterView::new("MaxOutstandingUnexpectedPDUs", parameters.unexpected_pdus),
            ParameterView::new("FirstBurstLength", parameters.first_burst),
            ParameterView::new("MaxBurstLength", parameters.max_burst),
        ];
    }
    let segment = ParameterView::new("MaxRecvDataSegmentLength of the initiator", max_send_segment).costs(
        max_send_segment < SEGMENT_MIN,
        format!("the data of reads is sent in PDUs of at most {max_send_segment} bytes"),
    );
    vec![
        set(immediate, "node.session.iscsi.ImmediateData", "Yes"),
        ParameterView::switch("InitialR2T", initial_r2t),
        set(segment, "node.conn[0].iscsi.MaxRecvDataSegmentLength", "262144"),
        ParameterView::new("FirstBurstLength", parameters.first_burst),
        ParameterView::new("MaxBurstLength", parameters.max_burst),
        ParameterView::new("MaxOutstandingR2T", parameters.max_outstanding_r2t),
        ParameterView::digest("HeaderDigest", parameters.header_digest),
        ParameterView::digest("DataDigest", parameters.data_digest),
    ]
}

/// iSCSI of a process.
pub struct IscsiRuntime {
    index: usize,
    authenticator: Arc<Authenticator>,
    registry: Arc<Registry>,
    host: Arc<dyn Host>,
    rdma: Arc<ReachRdma>,
}

/// Returns the work that ends the session over the RDMA connection of a number; set by the front of iSER.
type ReachRdma = OnceLock<Box<dyn Fn(u64) -> FrontJob + Send + Sync>>;

impl fmt::Debug for IscsiRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IscsiRuntime({} sessions)", self.registry.len())
    }
}

impl IscsiRuntime {
    /// The directory of targets, and the access control.
    #[must_use]
    pub fn authenticator(&self) -> &Arc<Authenticator> {
        &self.authenticator
    }

    /// The sessions over a transport.
    pub(crate) fn sessions_over(&self, transport: Transport, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        let records = self.registry.records();
        let is_over = |(_, record): &&(u16, SessionRecord)| record.location.transport == transport;
        records.iter().filter(is_over).map(|(tsih, record)| self.session(*tsih, record, targets)).collect()
    }

    /// Where the session over a transport with this ID is served.
    pub(crate) fn located(&self, transport: Transport, id: &str) -> Option<SessionLocation> {
        let tsih = id.strip_prefix(transport.word())?.strip_prefix('-')?.parse().ok()?;
        Some(self.registry.record(tsih)?.location).filter(|location| location.transport == transport)
    }

    /// Takes the way to sessions over RDMA, before there are any.
    pub(crate) fn reach_rdma(&self, ended_by: impl Fn(u64) -> FrontJob + Send + Sync + 'static) {
        // Each core has the same one.
        let _ = self.rdma.set(Box::new(ended_by));
    }

    /// The front of a core for sessions over a transport.
    pub(crate) fn serve_on(&self, core: &CoreContext, transport: Transport) -> Rc<serve::Front> {
        let peers = Rc::new(OtherCores { index: self.index, rdma: self.rdma.clone(), mesh: core.mesh.clone() });
        let (authenticator, registry) = (self.authenticator.clone(), self.registry.clone());
        serve::Front::new(&core.reactor, &core.target, authenticator, registry, (core.index, transport), peers)
    }

    fn session(&self, tsih: u16, record: &SessionRecord, targets: &BTreeMap<Arc<str>, String>) -> SessionView {
        let owned = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        let target = record.login.target.as_ref().filter(|_| !record.candidate.discovery);
        SessionView {
            id: session_id(record.location.transport, tsih),
            protocol: record.location.transport.word(),
            discovery: record.candidate.discovery,
            initiator: record.candidate.initiator.to_string(),
            source: record.login.shown_source(),
            target: target.map(|iqn| targets.get(iqn).cloned().unwrap_or_else(|| iqn.to_string())),
            group: owned(&record.login.group),
            portal_group: Some(record.group),
            user: owned(&record.login.user),
            seconds: self.host.now().since(record.since).as_secs(),
            parameters: if record.candidate.discovery { Vec::new() } else { negotiated(record) },
            tcp: Vec::new(),
        }
    }
}

impl FrontRuntime for IscsiRuntime {
    fn on_core(&self, core: &CoreContext) -> Rc<dyn FrontOnCore> {
        Rc::new(IscsiCore(self.serve_on(core, Transport::Tcp)))
    }

    fn publish(&self, published: &PublishedConfig<'_>) {
        self.authenticator.set_directory(directory(published));
    }

    fn sessions(&self, targets: &BTreeMap<Arc<str>, String>) -> Vec<SessionView> {
        self.sessions_over(Transport::Tcp, targets)
    }

    fn end_session(&self, cores: &FrontHandle, id: &str) -> Option<Later<bool>> {
        let SessionLocation { core, connection, .. } = self.located(Transport::Tcp, id)?;
        let cores = cores.clone();
        Some(Box::new(move || {
            let end = async move |front: Rc<IscsiCore>| front.0.end_session(connection).await;
            cores.ask(core, end).wait_for(END_PATIENCE).is_some()
        }))
    }

    fn dry_run(&self, question: &LoginQuestion) -> Option<LoginVerdict> {
        Some(dry_run::of(&self.authenticator.directory(), &self.registry, question))
    }

    fn shared_names(&self) -> Vec<(String, [IpAddr; 2])> {
        let names = self.registry.shared_names(self.host.now()).into_iter();
        names.map(|SharedName { initiator, sources }| (initiator.to_string(), sources)).collect()
    }

    fn leftovers(&self) -> Vec<String> {
        let count = self.registry.len();
        (count > 0).then(|| format!("{count} sessions registered")).into_iter().collect()
    }
}

/// Reaches the sessions on all other cores, and over the other transport.
struct OtherCores {
    index: usize,
    rdma: Arc<ReachRdma>,
    mesh: Rc<CoreMesh>,
}

impl Peers for OtherCores {
    fn end_session(&self, location: SessionLocation) -> Pin<Box<dyn Future<Output = ()>>> {
        let connection = location.connection;
        let over_tcp = move |front: Option<Rc<IscsiCore>>| async move {
            if let Some(front) = front {
                front.0.end_session(connection).await;
            }
        };
        let job = match location.transport {
            Transport::Tcp => Some(FrontJob::new(self.index, over_tcp)),
            Transport::Rdma => self.rdma.get().map(|ended_by| ended_by(connection)),
        };
        let mesh = self.mesh.clone();
        Box::pin(async move {
            if let Some(job) = job {
                mesh.run_on_front(location.core, job).await;
            }
        })
    }
}

/// iSCSI on a core.
#[derive(Debug)]
pub struct IscsiCore(Rc<serve::Front>);

impl FrontOnCore for IscsiCore {
    fn serve(&self, incoming: Incoming, portal: PortalRef) {
        self.0.serve(incoming, directory::PortalRef { portal: portal.portal, group: portal.group });
    }

    fn connections(&self) -> usize {
        self.0.connections()
    }

    fn tcp_states(&self, only: Option<&str>) -> Vec<(String, TcpState)> {
        let id = |tsih| session_id(Transport::Tcp, tsih);
        let is_wanted = |tsih| only.is_none_or(|only| only == id(tsih));
        self.0.tcp_states(is_wanted).into_iter().map(|(tsih, state)| (id(tsih), state)).collect()
    }

    fn count_retransmits(&self) {
        self.0.count_retransmits();
    }

    fn review(&self, ended: Arc<BTreeSet<Arc<str>>>) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move { self.0.review(&ended).await })
    }

    fn drain(&self) {
        self.0.drain();
    }

    fn drained(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.0.drained())
    }

    fn abandon(&self) {
        self.0.abandon();
    }
}

fn algorithms(hashes: &[Hash]) -> Arc<[Algorithm]> {
    let algorithm = |hash: &Hash| match hash {
        Hash::Sha3_256 => Algorithm::SHA3_256,
        Hash::Sha256 => Algorithm::SHA256,
        Hash::Sha1 => Algorithm::SHA1,
        Hash::Md5 => Algorithm::MD5,
    };
    hashes.iter().map(algorithm).collect()
}

/// The settings of sessions.
fn session(limits: &common_sections::Limits, window: u32, hashes: &[Hash]) -> Arc<config::Config> {
    let usual = config::Config::default();
    let chap = if hashes.is_empty() { usual.chap.clone() } else { algorithms(hashes) };
    Arc::new(config::Config {
        chap,
        window,
        // Each command of the window may come with a whole first burst.
        unsolicited_max: window as usize * usual.first_burst as usize,
        login_timeout: limits.login_time.0,
        ..usual
    })
}

/// The targets and portals of a configuration.
#[must_use]
fn directory(published: &PublishedConfig<'_>) -> Directory {
    let (config, limits) = (&published.wanted.config, &published.wanted.config.limits);
    let mut directory = Directory::new(config.server.drain.0);
    let depth = limits.queue_depth.get() as u32;
    directory.session = session(limits, depth, &config.discovery.hashes);
    directory.sessions_max = limits.sessions.get() as usize;
    directory.login_rate = Some(limits.login_rate.get() as u32);
    for (bound, portal, group) in published.portals_of(NAME) {
        let own = Some(bound.address).filter(|address| !address.ip().is_unspecified());
        let address = portal.advertise().or(own);
        let (id, is_advertised, transport) = (bound.id, is_listed(portal), Transport::Tcp);
        directory.portals.push(Portal { id, group, address, is_advertised, transport });
    }
    for (name, portal) in config.section::<Iser>() {
        let Some(group) = portal.group(config) else { continue };
        let (id, address) = (portal.number(name), Some(portal.rdma().at()));
        let (is_advertised, transport) = (portal.listed, Transport::Rdma);
        directory.portals.push(Portal { id, group, address, is_advertised, transport });
    }
    for (name, target) in config.targets.iter().filter(|(_, target)| target.enabled) {
        let (Some(access), Some(iqn)) = (published.accesses.get(name), &target.iqn) else { continue };
        directory.discovery = access.discovery().clone();
        let tags = target.portal_groups.names().filter_map(|name| config.portal_groups.get(name));
        let iqn = iqn.as_str();
        let port = |tag: u16| Some((tag, published.ports.of(iqn, tag)?));
        directory.add(TargetEntry {
            name: iqn.to_ascii_lowercase().into(),
            alias: target.alias.as_ref().map_or("", |alias| alias.as_str()).into(),
            ports: tags.filter_map(|group| port(group.tag.get() as u16)).collect(),
            access: access.clone(),
            session: session(limits, target.queue_depth.map_or(depth, |depth| depth.get() as u32), &target.hashes),
            sessions_max: target.sessions.map_or(SESSIONS_MAX, |sessions| sessions.get() as usize),
            moved: target.moved_to.map(|to| Moved { address: to.0, permanently: target.moved_for_good }),
        });
    }
    directory
}
