//! A sample schema for tests: fronts and stores with every kind of declaration, in words that tests of a configuration
//! are easily read with. It is the schema of no program. Tests over the schema of `lunar` are in `lunar/src/schema.rs`.

use crate::common_sections::{ISCSI_PORT, PortalGroup, Target};
use crate::counters::{ClassCounters, CoreCounters, CountersView, HostCounters, TrafficCounters, VolumeCounters};
use crate::kind::{FrontKind, Kind};
use crate::links::To;
use crate::schema::{
    Finder, FrontSchema, FrontSection, KeySet, Location, PortalSchema, Schema, Serves, SizeRule, StoreSchema,
    SystemCopies,
};
use crate::section::{Objects, OwnKeys, Resource, optional, or, required};
use crate::value::{FilePath, Mode};
use crate::{choices, sections};
use std::path::Path;

choices! {
    /// Whether hosts must connect with TLS.
    Tls {
        /// required of some hosts
        Optional = "optional",
        /// required of all hosts
        Required = "required",
    }
}

sections! {
    /// The keys of a portal of the first sample front.
    IscsiKeys (made: Live, removed: Live) {
        /// Whether the portal is listed.
        listed: bool = or(true) => Live;
    }

    /// The keys of a portal of the second sample front.
    NvmeKeys (made: Live, removed: Live) {
        /// Whether hosts must connect with TLS.
        tls: Tls = or(Tls::Optional) => LaterSessions;
    }

    /// The keys of a sample of a store that its system makes.
    ImageKeys (made: Live, removed: Live) {
        /// The image.
        image: Option<FilePath> = optional() => EndsSessions;
        /// Whether another one waits for it.
        waits: bool = or(false) => Live;
    }

    /// A sample of a section of a front.
    Vm (made: Live, removed: EndsSessions) {
        /// The target whose volumes it sees.
        target: To<Target> = required() => EndsSessions;
        /// The portal group whose asymmetric access state applies.
        portal_group: Option<To<PortalGroup>> = optional() => EndsSessions;
        /// The permissions of its socket.
        mode: Mode = or(Mode(0o600)) => Live;
    }
}

impl ImageKeys {
    fn brief(&self) -> String {
        self.image.as_ref().map_or_else(String::new, |image| image.path().display().to_string())
    }
}

fn image(keys: &OwnKeys) -> Option<&Path> {
    keys.get::<ImageKeys>()?.image.as_ref().map(FilePath::path)
}

/// There is no snapshot of a snapshot.
fn copy_of_image(source: &Path, new: &str, is_snapshot: bool) -> Option<String> {
    let source = source.to_str()?;
    match is_snapshot {
        true => (!source.contains('@')).then(|| format!("{source}@{new}")),
        false => Some(format!("{source}-{new}")),
    }
}

static COPIES: SystemCopies = SystemCopies { place: copy_of_image, left_out: &["waits"] };

impl IscsiKeys {
    fn brief(&self) -> String {
        if self.listed { String::new() } else { "not listed".into() }
    }
}

impl NvmeKeys {
    fn brief(&self) -> String {
        if self.tls == Tls::Required { "TLS".into() } else { String::new() }
    }
}

impl Vm {
    fn brief(&self) -> String {
        format!("target {}", self.target.name())
    }
}

/// The kind of the sample section.
const VM: FrontKind = FrontKind { place: 0, section: "vm", noun: "VM", may_be_missing: true };

impl Resource for Vm {
    const KIND: Kind = Kind::Front(VM);
}

/// The sample section has no rules of its own.
fn no_check(_objects: &dyn Objects, _find: &mut Finder<'_>) {}

const fn store(word: &'static str, location: Location, size: SizeRule) -> StoreSchema {
    StoreSchema { word, doc: "a sample of a store", noun: word, location, size, serves: Serves::Blocks, keys: None }
}

const fn front(word: &'static str, port: u16, keys: KeySet) -> FrontSchema {
    let portals = PortalSchema { word, doc: "a sample of a front", port, keys: Some(keys) };
    FrontSchema { portals: Some(portals), section: None, limits: None }
}

static FILE: StoreSchema = store("file", Location::File, SizeRule::Optional);
static BLOCK: StoreSchema = store("block", Location::Device, SizeRule::Refused);
static RAM: StoreSchema = store("ram", Location::Nowhere, SizeRule::Required);
static NULL: StoreSchema = store("null", Location::Nowhere, SizeRule::Required);
static IMAGE: StoreSchema = StoreSchema {
    keys: Some(KeySet::of::<ImageKeys>().with_place("image", image).with_copies(&COPIES)),
    ..store("image", Location::Remote, SizeRule::Refused)
};
static ISCSI: FrontSchema = front("iscsi", ISCSI_PORT, KeySet::of::<IscsiKeys>());
static NVME_TCP: FrontSchema = front("nvme-tcp", 4420, KeySet::of::<NvmeKeys>());
static VMS: FrontSchema =
    FrontSchema { portals: None, section: Some(FrontSection::of::<Vm>(VM, no_check)), limits: None };

/// The sample schema.
pub static SAMPLE: Schema =
    Schema { fronts: &[&ISCSI, &NVME_TCP, &VMS], stores: &[&FILE, &BLOCK, &RAM, &NULL, &IMAGE] };

/// The bounds of the histograms of a sample reading, in microseconds.
pub const BOUNDS: [u64; 3] = [8, 16, 32];

/// A reading of counters with one volume, one host and one core.
#[must_use]
pub fn reading(nanoseconds: u64, read: ClassCounters) -> CountersView {
    let traffic = TrafficCounters { read, ..TrafficCounters::default() };
    let volume = VolumeCounters { name: "disk".into(), in_flight: 3, traffic, ..VolumeCounters::default() };
    let host = HostCounters { host: "iqn.a".into(), traffic: volume.traffic.clone(), ..HostCounters::default() };
    CountersView {
        start: 1,
        nanoseconds,
        time: 1_700_000_000_000 + nanoseconds / 1_000_000,
        bounds: BOUNDS.to_vec(),
        cores: vec![CoreCounters { busy_nanoseconds: nanoseconds / 4, ..CoreCounters::default() }],
        volumes: vec![volume],
        hosts: vec![host],
        ..CountersView::default()
    }
}
