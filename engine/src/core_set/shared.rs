//! The state that all cores share.

use crate::authentication::AuthenticationThread;
use crate::front::FrontRuntime;
use crate::host::Host;
use crate::namespace_requests::NamespaceRequests;
use crate::notice::{AuditSink, Notice, NoticeTopic, RefusedLogin, SERVICE};
use crate::origin::Origin;
use crate::refusals::Refusals;
use crate::slow;
use lunar_core::access::refusal::RefusalSink;
use lunar_core::access::throttle::Throttle;
use lunar_core::hosts::{CoreHosts, Hosts};
use lunar_core::slow::{CoreSlowLog, SlowLog};
use lunar_core::stats::Stats;
use lunar_nvme::auth::authenticator::{Authenticator, Record};
use lunar_nvme::{Controllers, SubsystemRegistry};
use lunar_reactor::{Choice, log};
use lunar_scsi::Tokens;
use lunar_unit::SharedUnits;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The configuration of the cores.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The number of cores.
    pub cores: usize,
    /// The driver of the reactors.
    pub driver: Choice,
    /// Bytes for the data of commands in progress, per core.
    pub memory: usize,
    /// How long an idle core polls before it sleeps.
    pub spin: Duration,
    /// Whether their memory is registered with the kernel: it pays where volumes bypass the page cache.
    pub register: bool,
    /// How long commands in progress get to finish at the end.
    pub drain: Duration,
}

/// The state that all cores share.
pub struct Shared {
    /// The configuration of the cores.
    pub config: CoreConfig,
    /// The machine that they run on.
    pub host: Arc<dyn Host>,
    /// The origin of the configuration, for the words of messages.
    pub origin: Origin,
    /// The statistics of each core.
    pub stats: Vec<Arc<Stats>>,
    /// The counters of hosts.
    pub hosts: Arc<Hosts>,
    /// The slow log.
    pub slow: Arc<SlowLog>,
    /// The refused logins.
    pub refusals: Arc<Refusals>,
    /// Takes refused logins.
    pub refusal_sink: Arc<RefusalSink>,
    /// The NVMe controllers.
    pub controllers: Arc<Controllers>,
    /// The NVM subsystems, and which hosts may connect.
    pub subsystems: Arc<SubsystemRegistry>,
    /// The state of units, for all cores and command sets.
    pub units: Arc<SharedUnits>,
    /// The ROD tokens.
    pub tokens: Arc<Tokens>,
    /// The delays and limits of logins by their sources: failures count for all fronts together.
    pub throttle: Arc<Mutex<Throttle>>,
    /// Admits and refuses NVMe hosts.
    pub authenticator: Arc<Authenticator>,
    /// Computes what the authentication of NVMe hosts needs.
    pub authentication: Arc<AuthenticationThread>,
    /// The requests of NVMe hosts to change namespaces.
    pub namespace_requests: Arc<NamespaceRequests>,
    /// Takes the notices for operators.
    pub audit: Arc<AuditSink>,
    /// The fronts, in the order of the registry.
    fronts: OnceLock<Vec<Arc<dyn FrontRuntime>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} cores)", self.config.cores)
    }
}

impl Shared {
    /// The shared state of `config.cores` cores. The fronts are added by [`Shared::set_fronts`].
    #[must_use]
    pub fn new(config: CoreConfig, host: Arc<dyn Host>, origin: Origin, audit: Arc<AuditSink>) -> Arc<Self> {
        let (subsystems, throttle) = (Arc::<SubsystemRegistry>::default(), Arc::<Mutex<Throttle>>::default());
        let told = audit.clone();
        let sink = move |record: &Record| told(&notice_of(record, &subject_of(record)));
        let source = host.clone();
        let random = move |into: &mut [u8]| source.random(into);
        let authenticator = Authenticator::new(subsystems.clone(), throttle.clone(), Box::new(random), Box::new(sink));
        let (source, clock) = (host.clone(), host.clone());
        let tokens = Tokens::new(Box::new(move |into: &mut [u8]| source.random(into)), Box::new(move || clock.now()));
        let hosts = Hosts::new(config.cores);
        let refusals = Refusals::new(host.clone());
        let book = refusals.clone();
        let refusal_sink: Arc<RefusalSink> = Arc::new(move |refusal| book.add(refusal));
        authenticator.report_refusals(&hosts, &refusal_sink);
        let slow = SlowLog::new(config.cores);
        slow.tell(Box::new(|command| log!(warning, "{}", slow::Line(command))));
        let stats = |core| {
            let hosts = CoreHosts { hosts: hosts.clone(), core };
            Arc::new(Stats::counting(hosts, CoreSlowLog { log: slow.clone(), core }))
        };
        Arc::new(Self {
            stats: (0..config.cores).map(stats).collect(),
            hosts,
            slow,
            refusals,
            refusal_sink,
            controllers: Arc::default(),
            subsystems,
            units: Arc::default(),
            tokens,
            throttle,
            authenticator,
            authentication: Arc::new(AuthenticationThread::new(host.has_threads())),
            namespace_requests: Arc::default(),
            audit,
            fronts: OnceLock::new(),
            config,
            host,
            origin,
        })
    }

    /// Sets the fronts, before the cores start.
    pub fn set_fronts(&self, fronts: Vec<Arc<dyn FrontRuntime>>) {
        // The first are the fronts of this process.
        let _ = self.fronts.set(fronts);
    }

    /// The fronts, in the order of the registry.
    #[must_use]
    pub fn fronts(&self) -> &[Arc<dyn FrontRuntime>] {
        self.fronts.get().map_or(&[], Vec::as_slice)
    }

    /// The front of this type: for a front that shares the state of another one.
    #[must_use]
    pub fn front_of<F: FrontRuntime>(&self) -> Option<&F> {
        self.fronts().iter().find_map(|front| {
            let any: &dyn Any = &**front;
            any.downcast_ref()
        })
    }
}

fn subject_of(record: &Record) -> String {
    match record {
        Record::Login { attempt, .. } => attempt.host.to_string(),
        Record::TlsRefused { source, .. } => source.ip().to_string(),
        Record::Omitted(_) => SERVICE.to_owned(),
    }
}

fn notice_of<'a>(record: &'a Record, subject: &'a str) -> Notice<'a> {
    let topic = match record {
        Record::Login { outcome: Ok(()), .. } => NoticeTopic::Login,
        Record::Login { .. } | Record::TlsRefused { .. } | Record::Omitted(_) => NoticeTopic::Refusal,
    };
    let refusal = record.refused().map(|(code, transport, source, target)| RefusedLogin {
        transport,
        code,
        source: Some(source.ip()),
        target,
        user: "",
    });
    Notice { refusal, ..Notice::new(topic, subject, record) }
}
