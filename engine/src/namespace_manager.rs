//! Namespace Management and Namespace Attachment of NVMe hosts in pools. Each request is a change of the configuration,
//! as by the API, so it is visible there, is durable, and holds for all command sets. A thread makes the changes in
//! their order, because it waits for files and cores.

use crate::control_thread::{ControlThread, Keeper};
use crate::namespace_requests::{NamespaceJob, NamespaceRequests};
use crate::notice::{Notice, NoticeTopic};
use lunar_control::apply::Refusal;
use lunar_control::common_sections::{BlockSize, Pool, Volume};
use lunar_control::document::{Edit, Keys};
use lunar_control::files;
use lunar_control::in_use::{Author, Force};
use lunar_control::manager::Failure;
use lunar_control::names::Uuid;
use lunar_control::value::{Size, Textual};
use lunar_control::versions::BY_HOST;
use lunar_control::{Config, Kind};
use lunar_nvme::namespace_management::{Name, NamespaceOperation, Request, listed};
use lunar_nvme::{Controller, Status};
use lunar_reactor::log;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::SystemTime;

/// The limit of hosts that are attached to one namespace: enough for the largest clusters, and one line of the file.
const ATTACHED_MAX: usize = 256;
/// Bytes of a pool's name in the names of its volumes: the rest of the name distinguishes the volumes.
const NAME_BYTES: usize = 200;

/// Starts the manager, which makes changes through the control thread. If its thread cannot start, requests of hosts
/// are denied.
pub fn start(requests: &NamespaceRequests, control: ControlThread) {
    let Some(jobs) = requests.open() else { return };
    let thread = std::thread::Builder::new().name("namespaces".into());
    if let Err(why) = thread.spawn(move || serve(&control, &jobs)) {
        log!(
            error,
            "NVMe hosts cannot create namespaces: the thread cannot be started ({why}); raise the limit of tasks and \
             restart Lunar"
        );
    }
}

fn serve(control: &ControlThread, jobs: &Receiver<NamespaceJob>) {
    for job in jobs {
        job.run(|request| carry_out(control, request));
    }
}

fn carry_out(control: &ControlThread, request: &Request) -> Result<u32, Status> {
    let stopped = |_| Status::INTERRUPTED;
    match &request.operation {
        NamespaceOperation::Create { .. } => {
            let request = request.clone();
            control.change(move |keeper| create(keeper, &request)).map_err(stopped)?
        }
        NamespaceOperation::Delete(names) => {
            for name in names {
                delete(control, request, *name)?;
            }
            Ok(0)
        }
        NamespaceOperation::Attach { namespace, controllers, attach } => {
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

/// Waits until the commands of detached controllers at a namespace have ended.
fn leave(control: &ControlThread, controllers: &[u16], namespace: u32) -> Result<(), Status> {
    let asked =
        control.ask(|keeper| (keeper.running().core_set().cores().clone(), keeper.current().config.server.drain.0));
    let (cores, drain) = asked.map_err(|_| Status::INTERRUPTED)?;
    let controllers: Arc<[u16]> = controllers.into();
    cores.ask_all(move |core| {
        let controllers = controllers.clone();
        async move {
            let patience = core.reactor.sleep(drain);
            core.subsystem.detach(&controllers, &[namespace], patience).await;
        }
    });
    Ok(())
}

fn pool_of<'c>(config: &'c Config, request: &Request) -> Result<&'c Pool, Status> {
    config.pools.get(&*request.pool).map(|pool| &**pool).ok_or(Status::INVALID_OPCODE)
}

/// The volume of a host-made namespace of this pool, and its name in the configuration.
fn find<'c>(config: &'c Config, request: &Request, (id, uuid): Name) -> Result<(&'c String, &'c Volume), Status> {
    let mut made = config.made_of(&request.pool);
    let found = made.find(|(_, volume, known)| *known == id && volume.uuid == Some(Uuid(uuid)));
    found.map(|(name, volume, _)| (name, volume)).ok_or(Status::INVALID_NAMESPACE)
}

/// Makes a change for a host, and sends a notice of it.
fn change(keeper: &mut Keeper, request: &Request, edit: Edit, did: &str) -> Result<(), Status> {
    let who = format!("{BY_HOST}{}", request.host);
    // A host has the right to take namespaces of its pool from other hosts (NVMe Base 2.0 8.12).
    let author = Author { name: &who, force: Force::Yes };
    let done = keeper.change(&[edit], author, SystemTime::now());
    let words = match &done {
        Ok(_) => did.to_owned(),
        Err(why) => format!("not {did}: {why}"),
    };
    let notice = Notice::new(NoticeTopic::Change, &request.host, &words);
    keeper.running().notify(&notice);
    done.map(drop).map_err(|why| match why {
        // The operator is editing the file.
        Failure::Disk(_) | Failure::Refused(Refusal::Write(_)) => Status::INTERRUPTED,
        _ => Status::INTERNAL_ERROR,
    })
}

/// A name without a volume.
fn name_of(config: &Config, pool: &str, namespace: u32) -> String {
    let base = format!("{}-ns{namespace}", &pool[..pool.len().min(NAME_BYTES)]);
    let others = (2_u32..).map(|more| format!("{base}-{more}"));
    let free = |name: &String| !config.volumes.contains_key(name);
    std::iter::once(base.clone()).chain(others).find(free).unwrap_or(base)
}

/// The path of a new host-made volume. Its name was never used before, so no host reads data of an older file.
fn file_of(pool: &Pool, uuid: Uuid) -> PathBuf {
    pool.folder.path().join(format!("{}.img", uuid.text()))
}

fn create(keeper: &mut Keeper, request: &Request) -> Result<u32, Status> {
    let NamespaceOperation::Create { blocks, block_size, private } = request.operation else {
        return Err(Status::INVALID_FIELD);
    };
    let mut random = [0; 16];
    if !keeper.running().core_set().shared().host.random(&mut random) {
        return Err(Status::INTERNAL_ERROR);
    }
    let config = &keeper.current().config;
    let pool = pool_of(config, request)?;
    let bytes = blocks.checked_mul(block_size.into()).filter(|bytes| *bytes <= config.left_of(&request.pool));
    let bytes = bytes.ok_or(Status::INSUFFICIENT_CAPACITY)?;
    let has_place = (config.made_of(&request.pool).count() as u64) < pool.namespaces.get();
    let namespace = config.free_namespace(&request.pool).filter(|_| has_place);
    let namespace = namespace.ok_or(Status::IDENTIFIER_UNAVAILABLE)?;
    let uuid = Uuid::from_random(random);
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
    match files::remove(path) {
        Err(why) if why != rustix::io::Errno::NOENT => {
            log!(
                warning,
                "the file {} belongs to no namespace and could not be removed: {why}; remove it",
                path.display()
            );
            Err(Status::INTERNAL_ERROR)
        }
        _ => Ok(()),
    }
}

fn delete(control: &ControlThread, request: &Request, namespace: Name) -> Result<(), Status> {
    let of_host = request.clone();
    // When this returns, no core has the unit any more, and no command of it is in progress.
    let gone = control.change(move |keeper| remove(keeper, &of_host, namespace));
    let path = gone.map_err(|_| Status::INTERRUPTED)??;
    // If the operator has restored an older configuration meanwhile, it is a volume again.
    let removed = control.ask(move |keeper| {
        let mut volumes = keeper.current().config.volumes.values();
        if volumes.any(|volume| volume.uuid == Some(Uuid(namespace.1))) {
            return Ok(());
        }
        // Its metadata is removed, too.
        keeper.running().forget_volume(namespace.1);
        path.as_deref().map_or(Ok(()), unlink)
    });
    removed.map_err(|_| Status::INTERRUPTED)?
}

/// Removes a namespace from the configuration; returns the path of its file.
fn remove(keeper: &mut Keeper, request: &Request, namespace: Name) -> Result<Option<PathBuf>, Status> {
    let config = &keeper.current().config;
    let (name, volume) = find(config, request, namespace)?;
    let is_mapped = config.groups.values().any(|group| group.luns.0.values().any(|lun| lun.volume.name() == name));
    if is_mapped {
        // The operator serves it to other groups, too: a host must not delete it.
        return Err(Status::OPERATION_DENIED);
    }
    // At another path, the file was made by the operator.
    let own = file_of(pool_of(config, request)?, Uuid(namespace.1));
    let path = Some(own).filter(|own| volume.path.as_ref().is_some_and(|path| path.path() == own));
    let did = format!("deleted volume {name}, namespace {}", namespace.0);
    let edit = Edit::Delete { kind: Kind::Volume, name: name.clone() };
    change(keeper, request, edit, &did)?;
    Ok(path)
}

/// Attaches or detaches controllers, and records their hosts; returns the controllers.
fn set_attached(
    keeper: &mut Keeper,
    request: &Request,
    namespace: Name,
    list: &[u16],
    attach: bool,
) -> Result<Vec<u16>, Status> {
    let shared = keeper.running().core_set().shared().clone();
    let (config, (id, volume)) = (&keeper.current().config, namespace);
    let (name, model) = find(config, request, namespace)?;
    let found = listed(&shared.controllers, &shared.subsystems.directory(), request, (list, attach), &volume)?;
    let before: BTreeSet<String> = model.attached.iter().map(Textual::text).collect();
    // A private namespace has one host: a host that had it before, and is not connected, is not attached to it again.
    let others = if attach && model.private { BTreeSet::new() } else { before.clone() };
    let after = hosts(&others, &found, attach, |host| {
        let all = shared.controllers.all();
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

/// The hosts whose new controllers begin attached: the hosts of attached controllers.
fn hosts(
    before: &BTreeSet<String>,
    controllers: &[Arc<Controller>],
    attach: bool,
    has_other: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let mut after = before.clone();
    for controller in controllers {
        let host = &*controller.host.nqn;
        // NQNs of hosts are compared without case.
        if attach || !has_other(host) {
            after.retain(|other| !other.eq_ignore_ascii_case(host));
        }
        if attach {
            after.insert(host.to_owned());
        }
    }
    after
}
