//! Stores that go away and come back, in an engine with a back end whose stores fail when a test says so.

use crate::engine_tests::Place;
use crate::registry::FRONTS;
use lunar_control::apply::{MissingPolicy, Running as _, apply};
use lunar_control::check::Checked;
use lunar_control::live::Live as _;
use lunar_control::plan::{ObjectId, Plan};
use lunar_control::schema::StoreSchema;
use lunar_core::io::{Store, Traits};
use lunar_engine::backend::{
    Backend, Condition, Durability, Fingerprint, JailPaths, Location, Mark, Opened, OpenedStore, ProtectionRequest,
    Refusal, StoreRequest, StoreTrouble, TextForm,
};
use lunar_engine::engine::{Engine, EngineOptions};
use lunar_engine::host::{Host as _, StateFolder, SystemHost};
use lunar_engine::origin::Origin;
use lunar_engine::registry::Registry;
use lunar_engine::unavailable::Found;
use lunar_engine::volume::{Volume, VolumeContext};
use lunar_file::backend::FileBackend;
use lunar_reactor::Reactor;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Files that are told from others by their marks, and whose device is gone while there is a file `NAME.gone`.
struct FailingBackend;

#[derive(Clone, Debug)]
struct FailingStore {
    file: Opened,
    path: PathBuf,
    /// There was a file `NAME.other` when it was opened: it is another store.
    is_other: bool,
}

impl FailingStore {
    fn file(&self) -> &Arc<dyn OpenedStore> {
        self.file.store().expect("files are stores")
    }
}

impl Backend for FailingBackend {
    fn schema(&self) -> &'static StoreSchema {
        FileBackend.schema()
    }

    fn form(&self) -> TextForm {
        FileBackend.form()
    }

    fn examples(&self) -> &'static [&'static str] {
        FileBackend.examples()
    }

    fn location(&self) -> Location {
        FileBackend.location()
    }

    fn durability(&self) -> Durability {
        FileBackend.durability()
    }

    fn jail_paths(&self, path: &Path, is_protected: bool) -> JailPaths {
        FileBackend.jail_paths(path, is_protected)
    }

    fn mark_at(&self, path: &Path, read_only: bool) -> Option<Mark> {
        FileBackend.mark_at(path, read_only)
    }

    fn open(&self, request: &StoreRequest<'_>, previous: Option<&Opened>) -> Result<Opened, Refusal> {
        let previous = previous.and_then(Opened::downcast::<FailingStore>).map(|store| &store.file);
        let (file, path) = (FileBackend.open(request, previous)?, request.required_path()?.to_owned());
        let is_other = path.with_extension("other").exists();
        Ok(Opened::Store(Arc::new(FailingStore { file, path, is_other })))
    }
}

impl OpenedStore for FailingStore {
    fn traits(&self) -> &Traits {
        self.file().traits()
    }

    fn mark(&self) -> Option<Mark> {
        self.file().mark()
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        let other = Mark::Global { space: "other", name: "store".into() };
        let mark = if self.is_other { Some(other) } else { self.mark() };
        mark.as_ref().map(Fingerprint::of_mark)
    }

    fn is_direct(&self) -> bool {
        self.file().is_direct()
    }

    fn open(&self, reactor: &Reactor) -> io::Result<Box<dyn Store>> {
        self.file().open(reactor)
    }

    fn with_sharing(&self, is_shared: bool) -> Result<Arc<dyn OpenedStore>, Refusal> {
        self.file().with_sharing(is_shared)
    }

    fn finalize(&self) {
        self.file().finalize();
    }

    fn examine(&self) -> Vec<StoreTrouble> {
        *looks().entry(self.path.clone()).or_default() += 1;
        let gone = StoreTrouble {
            condition: Condition::Gone,
            words: "its device is gone".to_owned(),
            remedy: "connect it".to_owned(),
        };
        let gone = self.path.with_extension("gone").exists().then_some(gone);
        self.file().examine().into_iter().chain(gone).collect()
    }

    fn open_protection(&self, request: &ProtectionRequest<'_>) -> Result<Arc<dyn OpenedStore>, Refusal> {
        self.file().open_protection(request)
    }
}

/// How often each store was examined.
fn looks() -> MutexGuard<'static, BTreeMap<PathBuf, u64>> {
    static LOOKS: Mutex<BTreeMap<PathBuf, u64>> = Mutex::new(BTreeMap::new());
    LOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

static BACKENDS: &[&dyn Backend] = &[&FailingBackend];
static REGISTRY: Registry = Registry { fronts: FRONTS, backends: BACKENDS };

fn host(place: &Place) -> SystemHost {
    SystemHost {
        state: StateFolder::shared(&place.0),
        runtime: place.0.clone(),
        allows_path: |_| Ok(()),
        user_number: |_| None,
        group_number: |_| None,
    }
}

fn engine(place: &Place) -> Engine {
    let options =
        EngineOptions { registry: &REGISTRY, host: Arc::new(host(place)), lock: None, origin: Origin::Configuration };
    Engine::start(&place.checked("").config, options).expect("cores start")
}

fn wanted(place: &Place, keys: &str) -> Checked {
    place.checked(&format!(
        "[volume.v]\nkind = 'file'\npath = '{}'\nsize = '1M'\nuuid = 'f81d4fae-7dec-41d0-a765-00a0c91e6b00'\n{keys}",
        place.0.join("v.img").display()
    ))
}

/// An engine that serves the volume, which was served before, or lacks its store.
fn restarted(place: &Place, wanted: &Checked) -> Engine {
    let mut engine = engine(place);
    engine.expect(["v".to_owned()].into());
    let (nothing, volume) = (Checked::default(), ObjectId::volume("v"));
    let policy = MissingPolicy {
        may_be_missing: BTreeSet::from([volume.clone()]),
        may_lack: BTreeSet::from([volume]),
        retry: &mut |_, _| false,
    };
    apply(&mut engine, &Plan::between(&nothing, wanted), wanted, policy, || Ok(())).expect("it is served or lacks");
    engine.wait_until_final();
    engine.expect(BTreeSet::new());
    engine
}

/// Waits until the findings of a look that begins now are known.
fn until_examined(place: &Place) {
    let count = || looks().get(&place.0.join("v.img")).copied().unwrap_or(0);
    let (before, end) = (count(), Instant::now() + Duration::from_secs(60));
    // The look in progress may have begun before, and the findings of a look are known when the next one begins.
    while count() < before + 3 {
        assert!(Instant::now() < end, "the store is not examined");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lets the device go away and come back.
fn unplug(place: &Place, engine: &mut Engine, wanted: &Checked) {
    let gone = place.0.join("v.gone");
    std::fs::write(&gone, "").expect("a file");
    until_examined(place);
    engine.look_after_stores(wanted);
    assert!(engine.has_unavailable_stores());
    std::fs::remove_file(&gone).expect("it is there");
    until_examined(place);
    engine.look_after_stores(wanted);
}

#[test]
fn a_store_that_may_have_lost_writes_is_served_when_an_operator_accepts_it_even_after_a_restart() {
    let place = Place::new();
    let wanted = wanted(&place, "");
    let mut engine = engine(&place);
    place.apply(&mut engine, &Checked::default(), &wanted).expect("it is made");
    unplug(&place, &mut engine, &wanted);
    assert!(engine.has_unavailable_stores(), "the open device answers again");
    engine.store_found("v", Some(Found::Same), &wanted);
    assert!(engine.has_unavailable_stores(), "the same store is at its place");
    engine.end().expect("it ends");

    let mut engine = restarted(&place, &wanted);
    assert!(engine.has_unavailable_stores(), "after a restart");
    let words = engine.troubles().iter().map(ToString::to_string).collect::<String>();
    assert!(words.contains("writes that no flush confirmed") && words.contains("lunar volume accept v"), "{words}");
    engine.store_found("v", Some(Found::Same), &wanted);
    assert!(engine.has_unavailable_stores(), "the same store is at its place");
    engine.accept_store("v", &wanted).expect("it is accepted");
    assert!(!engine.has_unavailable_stores());
    engine.end().expect("it ends");

    let engine = restarted(&place, &wanted);
    assert!(!engine.has_unavailable_stores(), "it was accepted");
    engine.end().expect("it ends");
}

#[test]
fn a_store_without_a_write_cache_is_served_again_by_itself() {
    let place = Place::new();
    let wanted = wanted(&place, "write-through = true\n");
    let mut engine = engine(&place);
    place.apply(&mut engine, &Checked::default(), &wanted).expect("it is made");
    unplug(&place, &mut engine, &wanted);
    assert!(!engine.has_unavailable_stores());
    engine.end().expect("it ends");
    // It is missing at a start.
    let (file, aside) = (place.0.join("v.img"), place.0.join("aside.img"));
    std::fs::rename(&file, &aside).expect("it is there");
    let mut engine = restarted(&place, &wanted);
    let places = engine.look_after_stores(&wanted);
    assert_eq!(places.iter().map(|place| place.look()).collect::<Vec<_>>(), [None]);
    std::fs::rename(&aside, &file).expect("it is there");
    if places[0].look() == Some(Found::Unknown) {
        eprintln!("skipped: no extended attributes here");
    } else {
        engine.store_found("v", places[0].look(), &wanted);
        assert!(!engine.has_unavailable_stores(), "{:?}", engine.troubles());
    }
    engine.end().expect("it ends");
}

#[test]
fn a_store_that_is_not_the_one_before_once_it_is_open_is_not_served() {
    let place = Place::new();
    let wanted = wanted(&place, "write-through = true\n");
    let mut engine = engine(&place);
    place.apply(&mut engine, &Checked::default(), &wanted).expect("it is made");
    engine.end().expect("it ends");
    std::fs::rename(place.0.join("v.img"), place.0.join("aside.img")).expect("it is there");
    let mut engine = restarted(&place, &wanted);
    std::fs::write(place.0.join("v.img"), vec![7; 1 << 20]).expect("a file");
    // Another file has come to the place after the look.
    engine.store_found("v", Some(Found::Same), &wanted);
    assert!(engine.has_unavailable_stores());
    engine.end().expect("it ends");
}

#[test]
fn a_change_of_a_volume_gives_its_unit_no_other_store() {
    let place = Place::new();
    let (before, after) = (wanted(&place, ""), wanted(&place, "write-through = true\n"));
    let mut engine = engine(&place);
    place.apply(&mut engine, &Checked::default(), &before).expect("it is made");
    let (file, aside) = (place.0.join("v.img"), place.0.join("aside.img"));
    std::fs::rename(&file, &aside).expect("it is there");
    std::fs::write(&file, vec![7; 1 << 20]).expect("a file");
    let why = place.apply(&mut engine, &before, &after).expect_err("it is another file");
    assert!(why.contains("another file is at") && why.contains("move the file back"), "{why}");
    std::fs::remove_file(&file).expect("it is there");
    let why = place.apply(&mut engine, &before, &after).expect_err("it is not there");
    assert!(why.contains("is not at") && !file.exists(), "{why}");
    std::fs::rename(&aside, &file).expect("it is there");
    let other = place.0.join("v.other");
    std::fs::write(&other, "").expect("a file");
    let why = place.apply(&mut engine, &before, &after).expect_err("it is another store");
    assert!(why.contains("another store is at"), "{why}");
    std::fs::remove_file(&other).expect("it is there");
    place.apply(&mut engine, &before, &after).expect("it is the file before");
    engine.end().expect("it ends");
}

#[test]
fn a_volume_that_is_opened_again_keeps_its_metadata_store() {
    let place = Place::new();
    let (wanted, host) = (wanted(&place, ""), host(&place));
    let model = wanted.config.volumes.get("v").expect("it is configured");
    let opened = |previous, is_return| {
        let context = VolumeContext {
            backends: BACKENDS,
            state: host.state(),
            origin: &Origin::Configuration,
            previous,
            creates: true,
            known: None,
            is_return,
        };
        Volume::configured("v", model, &context).expect("it opens")
    };
    let first = opened(None, false);
    for is_return in [false, true] {
        assert!(Arc::ptr_eq(opened(Some(&first), is_return).metadata(), first.metadata()), "{is_return}");
    }
}
