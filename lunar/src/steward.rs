//! What NVMe hosts make of pools (Namespace Management and Attachment): each is a change of the configuration, as the
//! API would make it, so it is seen there, outlives a restart, and is the same for all command sets. A thread of its
//! own has them made, one after the other, for files and cores are waited for; commands wait as tasks of their cores.

use crate::daemon::{Control, Keeper};
use crate::house::Notice;
use lunar_control::apply::Refusal;
use lunar_control::check::{Machine, Outside};
use lunar_control::config::{Config, Kind};
use lunar_control::document::{Edit, Keys};
use lunar_control::manager::Failure;
use lunar_control::model::{BlockSize, Pool, Volume};
use lunar_control::names::Uuid;
use lunar_control::value::{Size, Textual};
use lunar_control::versions::BY_HOST;
use lunar_nvme::manage::{Name, Request, Wish, listed};
use lunar_nvme::{Controller, Status};
use lunar_reactor::{Reactor, log};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

/// Wishes that wait at most; whoever comes then is told to come again. Each takes a moment, and no host sends many.
const WAITING_MAX: usize = 64;
/// How long a command waits for what it wishes: less than the minute that hosts give it.
const PATIENCE: Duration = Duration::from_secs(50);
/// Hosts that are attached to one namespace at most: as many as the largest clusters have, and a line of the file.
const ATTACHED_MAX: usize = 256;
/// Bytes of the name of a pool that are used for names of its volumes: the rest is for what tells them apart.
const NAME_BYTES: usize = 200;

/// Who has wishes fulfilled, for all cores; nobody until it is started.
#[derive(Debug, Default)]
pub struct Steward(OnceLock<SyncSender<Errand>>);

/// A wish on its way.
#[derive(Debug)]
struct Errand(Request, Arc<Mutex<Answer>>);

/// How far a wish is, and who waits for it.
#[derive(Default, Debug)]
struct Answer {
    has_begun: bool,
    is_given_up: bool,
    result: Option<Result<u32, Status>>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Steward {
    /// Starts it: changes are made by this way. Without a thread for it hosts make nothing.
    pub(crate) fn start(&self, control: Control) {
        let (way, errands) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("steward".into());
        match thread.spawn(move || serve(&control, &errands)) {
            Ok(_) => drop(self.0.set(way)),
            Err(why) => log!("NVMe hosts make no namespaces, for there is no thread for it: {why}"),
        }
    }
}

fn serve(control: &Control, errands: &Receiver<Errand>) {
    for Errand(request, answer) in errands {
        let mut waits = lock(&answer);
        waits.has_begun = true;
        let is_given_up = waits.is_given_up;
        drop(waits);
        if is_given_up {
            continue;
        }
        let result = fulfil(control, &request);
        let mut waits = lock(&answer);
        waits.result = Some(result);
        let waker = waits.waker.take();
        drop(waits);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The way to it from one core.
pub struct Errands {
    reactor: Reactor,
    steward: Arc<Steward>,
}

impl fmt::Debug for Errands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Errands")
    }
}

/// A wish that nobody waits for any more is not begun.
struct GivesUp(Arc<Mutex<Answer>>);

impl Drop for GivesUp {
    fn drop(&mut self) {
        lock(&self.0).is_given_up = true;
    }
}

impl Errands {
    /// That of this core.
    #[must_use]
    pub fn new(reactor: &Reactor, steward: &Arc<Steward>) -> Self {
        Self { reactor: reactor.clone(), steward: steward.clone() }
    }

    /// Has a wish fulfilled: the identifier of what was made, or zero.
    pub fn ask(&self, request: Request) -> Pin<Box<dyn Future<Output = Result<u32, Status>>>> {
        let answer = Arc::<Mutex<Answer>>::default();
        let errand = Errand(request, answer.clone());
        let is_given = self.steward.0.get().map(|way| way.try_send(errand).is_ok());
        let reactor = self.reactor.clone();
        Box::pin(async move {
            match is_given {
                None => return Err(Status::OPERATION_DENIED),
                Some(false) => return Err(Status::INTERRUPTED),
                Some(true) => {}
            }
            let _gives_up = GivesUp(answer.clone());
            let mut late = std::pin::pin!(reactor.sleep(PATIENCE));
            poll_fn(|cx| {
                let mut answer = lock(&answer);
                if let Some(result) = answer.result.take() {
                    return Poll::Ready(result);
                }
                answer.waker = Some(cx.waker().clone());
                // What has begun goes on: whoever looks finds what became of it.
                let late_result = if answer.has_begun { Status::INTERNAL_ERROR } else { Status::INTERRUPTED };
                drop(answer);
                late.as_mut().poll(cx).map(|()| Err(late_result))
            })
            .await
        })
    }
}

fn fulfil(control: &Control, request: &Request) -> Result<u32, Status> {
    let stopped = |_| Status::INTERRUPTED;
    match &request.wish {
        Wish::Create { .. } => {
            let request = request.clone();
            control.change(move |keeper| create(keeper, &request)).map_err(stopped)?
        }
        Wish::Delete(names) => {
            for name in names {
                delete(control, request, *name)?;
            }
            Ok(0)
        }
        Wish::Attach { namespace, controllers, attach } => {
            let (request, list, namespace, attach) = (request.clone(), controllers.clone(), *namespace, *attach);
            let begun = control.change(move |keeper| set_attached(keeper, &request, namespace, &list, attach));
            let left = begun.map_err(stopped)??;
            if !attach {
                leave(control, &left, namespace.0)?;
            }
            Ok(0)
        }
    }
}

/// Waits until what controllers do at a namespace that they are detached from has ended.
fn leave(control: &Control, controllers: &[u16], namespace: u32) -> Result<(), Status> {
    let asked =
        control.ask(|keeper| (keeper.running().house().cores().clone(), keeper.current().config.server.drain.0));
    let (cores, drain) = asked.map_err(|_| Status::INTERRUPTED)?;
    let controllers: Arc<[u16]> = controllers.into();
    cores.ask_all(move |core| {
        let controllers = controllers.clone();
        async move {
            let patience = core.reactor.sleep(drain);
            core.served.subsystem.detach(&controllers, &[namespace], patience).await;
        }
    });
    Ok(())
}

fn pool_of<'c>(config: &'c Config, request: &Request) -> Result<&'c Pool, Status> {
    config.pools.get(&*request.pool).ok_or(Status::INVALID_OPCODE)
}

/// What hosts have made of this pool under this name, and what the operator calls it.
fn find<'c>(config: &'c Config, request: &Request, (id, uuid): Name) -> Result<(&'c String, &'c Volume), Status> {
    let mut made = config.made_of(&request.pool);
    let found = made.find(|(_, volume, known)| *known == id && volume.uuid == Some(Uuid(uuid)));
    found.map(|(name, volume, _)| (name, volume)).ok_or(Status::INVALID_NAMESPACE)
}

/// Makes a change for a host, and tells of it.
fn change(keeper: &mut Keeper, request: &Request, edit: Edit, did: &str) -> Result<(), Status> {
    let who = format!("{BY_HOST}{}", request.host);
    let done = keeper.change(&[edit], &who, SystemTime::now());
    let words = match &done {
        Ok(_) => did.to_owned(),
        Err(why) => format!("not {did}: {why}"),
    };
    keeper.running().tell(&Notice::Made { host: &request.host, words: &words });
    done.map(drop).map_err(|why| match why {
        // Somebody edits the file.
        Failure::Disk(_) | Failure::Refused(Refusal { step: None, .. }) => Status::INTERRUPTED,
        _ => Status::INTERNAL_ERROR,
    })
}

/// A name that no volume has.
fn name_of(config: &Config, pool: &str, namespace: u32) -> String {
    let base = format!("{}-ns{namespace}", &pool[..pool.len().min(NAME_BYTES)]);
    let others = (2_u32..).map(|more| format!("{base}-{more}"));
    let free = |name: &String| !config.volumes.contains_key(name);
    std::iter::once(base.clone()).chain(others).find(free).unwrap_or(base)
}

/// Where what hosts make lies. The name was never used: what a file of that name held is nobody's to read.
fn file_of(pool: &Pool, uuid: Uuid) -> PathBuf {
    pool.folder.path().join(format!("{}.img", uuid.text()))
}

fn create(keeper: &mut Keeper, request: &Request) -> Result<u32, Status> {
    let Wish::Create { blocks, block_size, private } = request.wish else { return Err(Status::INVALID_FIELD) };
    let config = &keeper.current().config;
    let pool = pool_of(config, request)?;
    let bytes = blocks.checked_mul(block_size.into()).filter(|bytes| *bytes <= config.left_of(&request.pool));
    let bytes = bytes.ok_or(Status::INSUFFICIENT_CAPACITY)?;
    let has_place = (config.made_of(&request.pool).count() as u64) < pool.namespaces.get();
    let namespace = config.free_namespace(&request.pool).filter(|_| has_place);
    let namespace = namespace.ok_or(Status::IDENTIFIER_UNAVAILABLE)?;
    let machine = Machine { config: PathBuf::new() };
    let uuid = Uuid::from_random(machine.random().map_err(|_| Status::INTERNAL_ERROR)?);
    let path = file_of(pool, uuid);
    let name = name_of(config, &request.pool, namespace);
    let block_size = if block_size == BlockSize::B512.bytes() { BlockSize::B512 } else { BlockSize::B4096 };
    let mut keys = Map::from_iter([
        ("kind".to_owned(), json!("file")),
        ("path".to_owned(), json!(path)),
        ("size".to_owned(), json!(Size(bytes).text())),
        ("block-size".to_owned(), json!(block_size.word())),
        ("uuid".to_owned(), json!(uuid.text())),
        ("pool".to_owned(), json!(*request.pool)),
        ("namespace".to_owned(), json!(namespace)),
    ]);
    if private {
        keys.insert("private".to_owned(), json!(true));
    }
    let did = format!("made volume {name} ({}) as namespace {namespace}", Size(bytes));
    let edit = Edit::Create { kind: Kind::Volume, name, keys: Keys(keys) };
    change(keeper, request, edit, &did).inspect_err(|_| _ = unlink(&path))?;
    Ok(namespace)
}

/// Removes a file that may be there.
fn unlink(path: &Path) -> Result<(), Status> {
    match std::fs::remove_file(path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            log!("{} belongs to no namespace any more, and could not be removed: {why}", path.display());
            Err(Status::INTERNAL_ERROR)
        }
        _ => Ok(()),
    }
}

fn delete(control: &Control, request: &Request, namespace: Name) -> Result<(), Status> {
    let of_host = request.clone();
    // When this returns, no core has it any more, and nothing is under way at it.
    let gone = control.change(move |keeper| remove(keeper, &of_host, namespace));
    let path = gone.map_err(|_| Status::INTERRUPTED)??;
    // Where the operator has taken an older configuration up meanwhile, it is a volume again.
    let removed = control.ask(move |keeper| {
        let mut volumes = keeper.current().config.volumes.values();
        if volumes.any(|volume| volume.uuid == Some(Uuid(namespace.1))) {
            return Ok(());
        }
        // What it kept besides its data goes, too.
        keeper.running().forget_kept(namespace.1);
        path.as_deref().map_or(Ok(()), unlink)
    });
    removed.map_err(|_| Status::INTERRUPTED)?
}

/// Takes a namespace out of the configuration; tells where its file is.
fn remove(keeper: &mut Keeper, request: &Request, namespace: Name) -> Result<Option<PathBuf>, Status> {
    let config = &keeper.current().config;
    let (name, volume) = find(config, request, namespace)?;
    let is_mapped = config.groups.values().any(|group| group.luns.0.values().any(|lun| lun.volume.name() == name));
    if is_mapped {
        // The operator shares it with others: that is not for a host to end.
        return Err(Status::OPERATION_DENIED);
    }
    // An operator who has it lie elsewhere has made that file.
    let own = file_of(pool_of(config, request)?, Uuid(namespace.1));
    let path = Some(own).filter(|own| volume.path.as_ref().is_some_and(|path| path.path() == own));
    let did = format!("deleted volume {name}, namespace {}", namespace.0);
    let edit = Edit::Delete { kind: Kind::Volume, name: name.clone() };
    change(keeper, request, edit, &did)?;
    Ok(path)
}

/// Attaches controllers, or detaches them, and remembers their hosts; tells which controllers.
fn set_attached(
    keeper: &mut Keeper,
    request: &Request,
    namespace: Name,
    list: &[u16],
    attach: bool,
) -> Result<Vec<u16>, Status> {
    let common = keeper.running().house().common().clone();
    let (config, (id, volume)) = (&keeper.current().config, namespace);
    let (name, model) = find(config, request, namespace)?;
    let found = listed(&common.controllers, &common.board.directory(), request, (list, attach), &volume)?;
    let before: BTreeSet<String> = model.attached.iter().map(Textual::text).collect();
    // What is private has one host: who had it before, and is away, does not come back to it.
    let others = if attach && model.private { BTreeSet::new() } else { before.clone() };
    let after = hosts(&others, &found, attach, |host| {
        let all = common.controllers.all();
        all.iter()
            .any(|one| one.host.nqn.eq_ignore_ascii_case(host) && !list.contains(&one.id) && one.is_attached(&volume))
    });
    if after.len() > ATTACHED_MAX {
        return Err(Status::OPERATION_DENIED);
    }
    if after != before {
        let attached = if after.is_empty() { Json::Null } else { json!(after) };
        let keys = Keys(Map::from_iter([("attached".to_owned(), attached)]));
        let ids: Vec<String> = list.iter().map(u16::to_string).collect();
        let what = if attach { "attached" } else { "detached" };
        let did = format!("{what} namespace {id} (volume {name}): controllers {}", ids.join(", "));
        let edit = Edit::Set { kind: Kind::Volume, name: name.clone(), keys };
        change(keeper, request, edit, &did)?;
    }
    found.iter().for_each(|controller| controller.set_attached(volume, id, attach));
    Ok(found.iter().map(|controller| controller.id).collect())
}

/// The hosts whose controllers begin attached: those that have one that is.
fn hosts(
    before: &BTreeSet<String>,
    controllers: &[Arc<Controller>],
    attach: bool,
    has_other: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut after = before.clone();
    for controller in controllers {
        let host = &*controller.host.nqn;
        // Names of hosts are the same in upper and lower case.
        if attach || !has_other(host) {
            after.retain(|other| !other.eq_ignore_ascii_case(host));
        }
        if attach {
            after.insert(host.to_owned());
        }
    }
    after
}

#[cfg(test)]
#[path = "steward_tests.rs"]
mod tests;
