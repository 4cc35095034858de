//! Volumes whose stores are made by the system that keeps them, such as images in a cluster: empty ones, snapshots and
//! clones. Their bytes do not pass Lunar. A store whose volume cannot be created is removed again.

use crate::audit::Topic;
use crate::control::Control;
use crate::copies::{CopyError, CopyJob, CopyRequest};
use crate::copy::{busy, created};
use crate::request::{ApiRequest, Outcome, Problem, Reply, reply_with_steps, stopping, summary_of};
use lunar_control::api::{ProblemDetails, Resource, edit};
use lunar_control::common_sections::Volume;
use lunar_control::document::{Edit, Keys};
use lunar_control::in_use::Author;
use lunar_control::live::{Later, MadeStore, Making, StoreNotMade, StoreOrigin};
use lunar_control::schema::StoreSchema;
use lunar_control::value::{Size, Textual};
use lunar_control::{Kind, Plan};
use serde_json::{Map, Value as Json, json};
use std::sync::atomic::Ordering;

/// The store that these keys of a volume name, if its system makes such stores.
fn store_of(request: &ApiRequest, keys: &Map<String, Json>) -> Option<&'static StoreSchema> {
    let kind = keys.get("kind")?.as_str()?;
    let store = request.shared.schema.stores.iter().copied().find(|store| store.word == kind)?;
    store.copies().map(|_| store)
}

/// Takes the size of a store that is to be made from the keys of its volume: the store has it then.
fn take_size(request: &ApiRequest, keys: &mut Map<String, Json>) -> Result<Option<Size>, Problem> {
    if store_of(request, keys).is_none() {
        return Ok(None);
    }
    let Some(size) = keys.remove("size") else { return Ok(None) };
    let text = size.as_str().map_or_else(|| size.to_string(), str::to_owned);
    let size = Size::parse(&text).map_err(|why| Problem::bad_request(format!("size: '{text}' {why}")))?;
    match size.0 {
        0 => Err(Problem::bad_request("size: a volume has one block at least")),
        _ => Ok(Some(size)),
    }
}

fn not_made(why: &StoreNotMade) -> Problem {
    ProblemDetails::new("/problems/store", "The store was not made", 409, why.to_string()).into()
}

/// The volume is not served, so its store is not known.
fn not_served(name: &str) -> Problem {
    let why = format!("volume {name} is not served, or its store is made by hand; `lunar status` shows the reason");
    ProblemDetails::new("/problems/store", "The store was not made", 409, why).into()
}

/// `POST /v1/volume/{name}`
pub fn create(control: &mut dyn Control, request: &ApiRequest) -> Result<Later<Outcome>, Problem> {
    let (name, mut keys): (_, Map<String, Json>) = (request.name(), request.json()?);
    let size = take_size(request, &mut keys)?;
    let create = edit(Kind::Volume, name.clone(), keys, true);
    let Some(size) = size else {
        let outcome = request.edit(control, create);
        return Ok(Box::new(move || outcome));
    };
    // Fail before anything is made if the volume would be refused.
    let mut plan = control.plan_edits(std::slice::from_ref(&create))?;
    if request.dry_run {
        plan.notes.push(format!("the store of volume {name} is made, with {size}"));
        return Ok(Box::new(move || reply_with_steps(&plan)));
    }
    let making = control.make_store(&create, StoreOrigin::Empty(size.0))?.ok_or_else(|| not_served(&name))?;
    let (control_thread, shared) = (request.control_thread.clone(), request.shared.clone());
    let (caller, force) = (request.caller.name.clone(), request.force);
    Ok(Box::new(move || {
        let made = making().map_err(|why| not_made(&why))?;
        let author = caller.clone();
        let change = move |control: &mut dyn Control| {
            control.change(std::slice::from_ref(&create), Author { name: &author, force })
        };
        match control_thread.change(change) {
            Some(Ok(plan)) => {
                made.keep();
                shared.audit_log.add(Topic::Change, &caller, &summary_of(&plan));
                reply_with_steps(&plan)
            }
            Some(Err(why)) => Err(removed(made, ProblemDetails::from(&why))),
            None => {
                // The service stops, and does not wait for the system.
                drop(made);
                Err(stopping())
            }
        }
    }))
}

/// Removes a store whose volume is not created, for this reason.
fn removed(made: Box<dyn MadeStore>, why: ProblemDetails) -> Problem {
    match made.remove() {
        Ok(()) => why.into(),
        Err(left) => ProblemDetails { detail: format!("{}; {left}", why.detail), ..why }.into(),
    }
}

/// The edit that creates the volume of a copy, and the place of the copy.
fn copy_of(
    control: &mut dyn Control,
    (name, volume): (&str, &Volume),
    order: &CopyRequest,
) -> Result<(Map<String, Json>, String), Problem> {
    let no_copy = || {
        Problem::bad_request(format!("the store of volume {name} cannot be copied so: clone it (`lunar volume clone`)"))
    };
    if !order.share {
        // A copy of all bytes is none of the system.
        return Err(no_copy());
    }
    let (key, copies) = volume.kind.declaration().copies().ok_or_else(no_copy)?;
    let place = volume.place().ok_or_else(no_copy)?;
    let usual = || (copies.place)(place, &order.name, order.read_only);
    let place = order.path.clone().or_else(usual).ok_or_else(no_copy)?;
    let shown = Resource::of(&control.current().config, Kind::Volume, name).map(|found| found.keys);
    let shown = shown.unwrap_or_default();
    let mut keys = Map::new();
    let own = volume.own.keys().into_iter().filter(|own| !copies.left_out.contains(&own.field));
    let taken = own.map(|own| own.name()).chain(["kind".to_owned(), "block-size".to_owned()]);
    keys.extend(
        taken.filter_map(|name| Some((name.clone(), shown.get(&name).filter(|value| !value.is_null())?.clone()))),
    );
    keys.insert(key.to_owned(), json!(place));
    if order.read_only {
        keys.insert("read-only".to_owned(), json!(true));
    }
    Ok((keys, place))
}

/// `POST /v1/volume/{name}/copy` of a volume whose system makes copies.
pub(crate) fn copy(control: &mut dyn Control, request: &ApiRequest, order: &CopyRequest) -> Outcome {
    let name = request.name();
    let missing = || Problem::not_found(format!("there is no volume '{name}'"));
    let volume = control.current().config.volumes.get(&name).cloned().ok_or_else(missing)?;
    let (mut keys, place) = copy_of(control, (&name, &volume), order)?;
    let source = control.copy_source(&name);
    if let Some(source) = &source {
        keys.insert("uuid".to_owned(), json!(source.uuid.text()));
    }
    let create = Edit::Create { kind: Kind::Volume, name: order.name.clone(), keys: Keys(keys) };
    control.plan_edits(std::slice::from_ref(&create))?;
    let making = control.make_store(&create, StoreOrigin::Volume(&name))?.ok_or_else(|| not_served(&name))?;
    let copy = request.shared.copies.add(format!("volume {name} to {}", order.name), 0, place).ok_or_else(busy)?;
    let view = copy.view();
    let (control_thread, shared, caller) =
        (request.control_thread.clone(), request.shared.clone(), request.caller.name.clone());
    let make = move || {
        let result = made(&copy, making, || created(&control_thread, create, source, &caller));
        if let Ok(plan) = &result {
            shared.audit_log.add(Topic::Change, &caller, &summary_of(plan));
        }
        *copy.end() = Some(result.map(drop));
    };
    let thread = std::thread::Builder::new().name("copy".into()).spawn(make);
    thread.map_err(|why| ProblemDetails::new("/problems/busy", "Too busy", 503, why.to_string()))?;
    Reply::json(&view)
}

/// Makes a store, and its volume by `create`: both or none.
fn made(copy: &CopyJob, making: Making, create: impl FnOnce() -> Result<Plan, CopyError>) -> Result<Plan, CopyError> {
    let made = making().map_err(CopyError::Store)?;
    let created = if copy.stop.load(Ordering::Relaxed) { Err(CopyError::Stopped) } else { create() };
    match created {
        Ok(plan) => {
            made.keep();
            Ok(plan)
        }
        Err(why) => Err(match made.remove() {
            Ok(()) => why,
            Err(left) => CopyError::Left(Box::new(why), left),
        }),
    }
}
