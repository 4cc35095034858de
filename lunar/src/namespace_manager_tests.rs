//! Hosts create, attach and delete namespaces of a pool of a daemon.

use crate::daemon::Service;
use lunar_control::document::Edit;
use lunar_control::in_use::{Author, Force};
use lunar_engine::control_thread::Keeper;
use lunar_nvme::Status;
use lunar_nvme::namespace_management::{Name, NamespaceOperation, Request};
use lunar_nvme::{Queue, Tenant};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

const NQN: &str = "nqn.2026-01.org.example:t";
const MIB: u64 = 1 << 20;

thread_local! {
    /// The queues of hosts on this core.
    static HOSTS: RefCell<Vec<Rc<Queue>>> = const { RefCell::new(Vec::new()) };
}

/// A daemon whose hosts may create two namespaces of together 8 MiB, besides namespace 1. Its folder is removed at the
/// end of the test.
struct Place {
    folder: PathBuf,
    service: Option<Service>,
}

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lunar-namespaces-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("made")).expect("a folder");
        let text = format!(
            "[server]\ncores = 2\nmemory = '8M'\ndriver = 'epoll'\ndrain = '100ms'\n\
             [pool.few]\nfolder = '{}'\nspace = '8M'\nnamespaces = 2\n[volume.own]\nkind = 'ram'\nsize = '1M'\n\
             [portal-group.p]\ntag = 1\n[target.t]\nnqn = '{NQN}'\niqn = 'iqn.2026-01.org.example:t'\n\
             portal-groups = ['p']\n[group.hosts]\ntargets = ['t']\ninitiators = ['*']\npool = 'few'\n\
             luns = {{ 0 = 'own' }}\n[group.poor]\ntargets = ['t']\ninitiators = ['nqn.poor']\n",
            folder.join("made").display()
        );
        std::fs::write(folder.join("lunar.toml"), text).expect("a file");
        let mut place = Self { folder, service: None };
        place.start();
        place
    }

    fn start(&mut self) {
        let service = Service::start(&self.folder.join("lunar.toml"), Some(&self.folder.join("state")), || false);
        self.service = Some(service.expect("it starts"));
    }

    fn stop(&mut self) {
        self.service.take().expect("it runs").end().expect("it ends");
        // File locks end with their process, which continues here.
        for file in std::fs::read_dir(self.folder.join("made")).expect("the folder") {
            let (path, copy) = (file.expect("a file").path(), self.folder.join("copy"));
            std::fs::copy(&path, &copy).and_then(|_| std::fs::rename(&copy, &path)).expect("a copy");
        }
    }

    fn keeper<T: Send + 'static>(&self, look: impl FnOnce(&mut Keeper) -> T + Send + 'static) -> T {
        self.service.as_ref().expect("it runs").control().ask(look).expect("it runs")
    }

    /// Makes a change as the operator.
    fn change(&self, edit: Edit) {
        let control = self.service.as_ref().expect("it runs").control();
        let done = control.change(move |keeper| {
            let operator = Author { name: "op", force: Force::Yes };
            keeper.change(std::slice::from_ref(&edit), operator, SystemTime::now())
        });
        done.expect("it runs").expect("it can be");
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.folder.join("lunar.toml")).expect("the file")
    }

    fn files(&self) -> Vec<u64> {
        let files = std::fs::read_dir(self.folder.join("made")).expect("the folder");
        files.map(|file| file.expect("a file").metadata().expect("it is there").len()).collect()
    }

    /// A controller of a host on a core, behind the map of a group.
    fn host(&self, core: usize, host: &'static str, group: &'static str) -> u16 {
        let cores = self.keeper(|keeper| keeper.running().core_set().cores().clone());
        let made = cores.ask(core, move |core| async move {
            let tenant = Tenant {
                host: host.into(),
                subsystem: NQN.into(),
                map: Some(group.into()),
                group: 0,
                address: "x".into(),
            };
            let queue = core.subsystem.open_controller(&tenant, core.reactor.now()).expect("room");
            HOSTS.with_borrow_mut(|hosts| hosts.push(queue.clone()));
            queue.controller.id
        });
        made.wait().expect("it runs")
    }

    /// The namespaces that each controller has.
    fn seen(&self) -> Vec<(u16, Vec<u32>)> {
        let cores = self.keeper(|keeper| keeper.running().core_set().cores().clone());
        let look = |_| {
            let ids = |queue: &Rc<Queue>| queue.namespaces().iter().map(|one| one.id).collect();
            let seen = HOSTS.with_borrow(|all| all.iter().map(|one| (one.controller.id, ids(one))).collect());
            std::future::ready::<Vec<(u16, Vec<u32>)>>(seen)
        };
        let mut all: Vec<_> = cores.ask_all(look).into_iter().flatten().collect();
        all.sort();
        all
    }

    /// Sends the request of a host of this name from core 1.
    fn operation(&self, host: &str, operation: NamespaceOperation) -> Result<u32, Status> {
        let request = Request { subsystem: NQN.into(), pool: "few".into(), host: host.into(), operation };
        let cores = self.keeper(|keeper| keeper.running().core_set().cores().clone());
        let done = cores.ask(1, move |core| core.shared().namespace_requests.ask(&core.reactor, request));
        done.wait().expect("it runs")
    }

    fn make(&self, bytes: u64, private: bool) -> Result<u32, Status> {
        self.operation(
            "nqn.2026-01.org.example:h",
            NamespaceOperation::Create { blocks: bytes / 4096, block_size: 4096, private },
        )
    }

    fn attach(&self, id: u32, controllers: &[u16], attach: bool) -> Result<u32, Status> {
        let controllers = controllers.to_vec();
        self.operation(
            "nqn.2026-01.org.example:h",
            NamespaceOperation::Attach { namespace: self.name(id), controllers, attach },
        )
    }

    fn delete(&self, ids: &[u32]) -> Result<u32, Status> {
        let names = ids.iter().map(|id| self.name(*id)).collect();
        self.operation("nqn.2026-01.org.example:h", NamespaceOperation::Delete(names))
    }

    /// The namespace ID and UUID of a namespace.
    fn name(&self, id: u32) -> Name {
        let uuid = self.keeper(move |keeper| {
            let config = &keeper.current().config;
            let found = config.made_of("few").find(|(.., known)| *known == id);
            found.and_then(|(_, volume, _)| volume.uuid).map_or([0; 16], |uuid| uuid.0)
        });
        (id, uuid)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn namespaces_of_hosts_persist_with_their_attachments() {
    let mut place = Place::new("lasts");
    let first = place.host(0, "nqn.2026-01.org.example:h", "hosts");
    let second = place.host(1, "nqn.2026-01.org.example:i", "hosts");
    let poor = place.host(1, "nqn.poor", "poor");
    assert_eq!(place.make(9 * MIB, false), Err(Status::INSUFFICIENT_CAPACITY));
    assert_eq!((place.make(4 * MIB, false), place.files()), (Ok(2), vec![4 * MIB]));
    assert_eq!(place.make(5 * MIB, false), Err(Status::INSUFFICIENT_CAPACITY));
    assert_eq!((place.make(MIB, true), place.make(MIB, false)), (Ok(3), Err(Status::IDENTIFIER_UNAVAILABLE)));
    let text = place.text();
    assert!(text.contains("[volume.few-ns2]") && text.contains("private = true"), "{text}");
    assert_eq!(place.seen(), [(first, vec![1]), (second, vec![1]), (poor, vec![])]);
    assert_eq!(place.attach(2, &[first, poor], true), Err(Status::CONTROLLER_LIST));
    assert_eq!(place.attach(2, &[first], true), Ok(0));
    assert_eq!(place.attach(2, &[first, second], true), Err(Status::ALREADY_ATTACHED));
    assert_eq!(place.attach(3, &[first, second], true), Err(Status::IS_PRIVATE));
    assert_eq!((place.attach(3, &[second], true), place.attach(3, &[first], true)), (Ok(0), Err(Status::IS_PRIVATE)));
    assert_eq!(place.seen(), [(first, vec![1, 2]), (second, vec![1, 3]), (poor, vec![])]);
    assert_eq!(place.attach(3, &[second], false), Ok(0));
    assert_eq!(place.attach(3, &[second], false), Err(Status::NOT_ATTACHED));
    // A new controller has the attachments of its host, also after a restart.
    let again = place.host(0, "nqn.2026-01.org.example:h", "hosts");
    assert_eq!(place.seen()[3], (again, vec![1, 2]));
    // Detaching one of the two controllers does not detach the host.
    assert_eq!(place.attach(2, &[again], false), Ok(0));
    place.stop();
    place.start();
    let (first, second) =
        (place.host(1, "nqn.2026-01.org.example:h", "hosts"), place.host(0, "nqn.2026-01.org.example:i", "hosts"));
    assert_eq!(place.seen(), [(first, vec![1, 2]), (second, vec![1])]);
    assert_eq!((place.attach(2, &[first], false), place.text().contains("attached")), (Ok(0), false));
    assert_eq!(place.seen(), [(first, vec![1]), (second, vec![1])]);
    place.stop();
}

#[test]
fn deleted_namespaces_lose_their_data_and_mapped_ones_cannot_be_deleted() {
    let mut place = Place::new("gone");
    let host = place.host(0, "nqn.2026-01.org.example:h", "hosts");
    assert_eq!((place.make(MIB, false), place.make(MIB, false)), (Ok(2), Ok(3)));
    assert_eq!((place.attach(2, &[host], true), place.attach(3, &[host], true)), (Ok(0), Ok(0)));
    let map = |lun| Edit::Map {
        group: "hosts".into(),
        lun,
        volume: "few-ns2".into(),
        read_only: false,
        metadata: false,
        namespace: None,
    };
    place.change(map(7));
    assert_eq!(place.seen(), [(host, vec![1, 2, 3])], "by its own identifier");
    let luns = place.keeper(|keeper| {
        let cores = keeper.running().core_set().cores().clone();
        let count = |core: Rc<lunar_engine::core_set::core::Core>| {
            let maps = core.target.maps();
            std::future::ready(maps.iter().map(|(_, map)| map.luns().count()).max())
        };
        cores.ask_all(count)
    });
    assert_eq!(luns, [Some(2); 2], "initiators see it, too");
    assert_eq!((place.delete(&[2]), place.files().len()), (Err(Status::OPERATION_DENIED), 2));
    place.change(Edit::Unmap { group: "hosts".into(), lun: 7 });
    let unknown = NamespaceOperation::Delete(vec![(2, [9; 16])]);
    assert_eq!(place.operation("nqn.2026-01.org.example:h", unknown), Err(Status::INVALID_NAMESPACE));
    assert_eq!((place.delete(&[2]), place.files().len()), (Ok(0), 1));
    assert_eq!((place.seen(), place.text().contains("few-ns2")), (vec![(host, vec![1, 3])], false));
    // A new namespace with the same ID is another namespace: no controller is attached to it.
    assert_eq!((place.make(MIB, false), place.seen()), (Ok(2), vec![(host, vec![1, 3])]));
    assert_eq!((place.delete(&[2, 3]), place.files()), (Ok(0), vec![]));
    assert_eq!(place.seen(), [(host, vec![1])]);
    place.stop();
}
