//! The scenario of steps on stores, without a transport: tasks of one core read, write, zero, unmap, compare and flush
//! one unit. Operations fail, take long and are aborted, and the process crashes.

use crate::model::{End, Model, Value, ZEROES};
use crate::stamp::{self, SECTOR};
use crate::watch::Watch;
use lunar_core::io::{Fault, Store, Traits};
use lunar_core::medium::Medium;
use lunar_core::mem::{Arena, Sg};
use lunar_core::metadata::VolatileMemory;
use lunar_core::port::Transfer;
use lunar_core::range::Ranges;
use lunar_core::step::{Failure, FinalData, SlotContext, Step, carry_out};
use lunar_core::tally::Tally;
use lunar_core::time::Instant;
use lunar_core::unit::{Admitted, Geometry, Identity, OneCore, Unit, UnitId};
use lunar_ram::RamVolume;
use lunar_reactor::Reactor;
use lunar_reactor::disk::{Alignment, Health, Policy};
use lunar_reactor::op::How;
use lunar_reactor::sim::{Chance, Faults, Host};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const HOST: Host = Host(1);
const PATH: &str = "volume";
/// Enough for the data of all tasks: this scenario does not test a lack of memory.
const ARENA_BYTES: usize = 8 << 20;
/// Sectors that one step touches: a few blocks of space, so that steps overlap often.
const STEP_SECTORS_MAX: u64 = 40;

/// The set-up of a seed.
#[derive(Clone, Debug)]
struct Setup {
    sectors: usize,
    /// `None`: in memory.
    policy: Option<Policy>,
    tasks: u64,
    steps: u64,
    faults: Faults,
}

impl Setup {
    fn any(chance: &mut Chance) -> Self {
        let policy = Policy {
            durable: chance.odds(200_000),
            direct: chance.odds(300_000).then_some(Alignment { memory: SECTOR, length: SECTOR }),
        };
        Self {
            sectors: 8 << chance.within(1..=5),
            policy: chance.odds(900_000).then_some(policy),
            tasks: chance.within(1..=8),
            steps: chance.within(5..=40),
            faults: Faults::any(chance),
        }
    }

    fn is_durable(&self) -> bool {
        self.policy.is_some_and(|policy| policy.durable)
    }

    /// Whether a step may fail like this, by what goes wrong here.
    fn may_fail(&self, fault: Fault, step: &Step) -> bool {
        let faults = &self.faults;
        let changes = !matches!(step, Step::Read { .. } | Step::Flush);
        let reads = matches!(step, Step::Read { .. } | Step::CompareWrite { .. });
        let is_durable = match step {
            Step::Write { durable, .. } | Step::CompareWrite { durable, .. } => *durable || self.is_durable(),
            Step::Flush => true,
            _ => changes && self.is_durable(),
        };
        self.policy.is_some()
            && match fault {
                Fault::Medium => {
                    // A durable step reports that the writes of others could not be written back.
                    reads && faults.read_error > 0
                        || (changes || is_durable) && faults.write_error > 0
                        || is_durable && faults.sync_error > 0
                }
                Fault::NoSpace => changes && faults.no_space > 0,
                _ => false,
            }
    }

    fn traits(&self) -> Traits {
        Traits {
            size: (self.sectors * SECTOR) as u64,
            read_only: false,
            write_cache: !self.is_durable(),
            thin: true,
            unmap_granularity: 4096,
            unmap_zeroes: true,
            physical_block: 4096,
            optimal_io: 0,
            rotational: false,
            atomic_write: 0,
        }
    }
}

/// Runs the scenario.
pub fn run(watch: &Watch) {
    let world = watch.world();
    let mut chance = world.chance();
    let setup = Setup::any(&mut chance);
    world.note(format_args!("{setup:?}"));
    world.create(PATH, setup.sectors * SECTOR);
    let fragile = setup.policy.is_some() && setup.faults.sync_error + setup.faults.write_error > 0;
    let model = Rc::new(RefCell::new(Model::new(setup.sectors, fragile)));
    for _ in 0..chance.within(1..=3) {
        world.set_faults(setup.faults.clone());
        let crash = chance.coin().then(|| Crash {
            at: world.now() + Duration::from_micros(chance.within(1..=50_000)),
            power: chance.coin(),
        });
        live(watch, &setup, &model, &mut chance, crash);
        if watch.is_wrong() {
            return;
        }
    }
    let mut healed = setup;
    healed.faults.heal();
    world.set_faults(healed.faults.clone());
    last_look(watch, &healed, &model);
}

/// The early end of a run.
#[derive(Clone, Copy)]
struct Crash {
    at: Instant,
    power: bool,
}

/// One run of the process.
fn live(watch: &Watch, setup: &Setup, model: &Rc<RefCell<Model>>, chance: &mut Chance, crash: Option<Crash>) {
    let world = watch.world();
    if setup.policy.is_none() {
        // Memory is lost with its process.
        model.borrow_mut().wipe();
    }
    let core = core(watch);
    let bench = Rc::new(Bench::new(watch, &core, setup, model));
    let left = Rc::new(Cell::new(setup.tasks));
    for _ in 0..setup.tasks {
        let (bench, left, chance, steps) = (bench.clone(), left.clone(), chance.fork(), setup.steps);
        core.spawn(async move {
            let mut user = User::new(bench, chance);
            for _ in 0..steps {
                user.step().await;
            }
            left.set(left.get() - 1);
        });
    }
    if let Some(Crash { at, .. }) = crash {
        let reactor = core.clone();
        core.spawn(async move { reactor.sleep_until(at).await });
    }
    let is_time = || crash.is_some_and(|crash| world.now() >= crash.at);
    world.run(&[&core], || left.get() == 0 || is_time() || watch.is_wrong());
    let power = crash.is_some_and(|crash| left.get() > 0 && crash.power);
    if left.get() == 0 && core.arena().used() > 0 {
        watch.report(format!("{} bytes of memory were not given back", core.arena().used()));
    }
    world.crash(HOST, power);
    model.borrow_mut().crash(power);
}

fn core(watch: &Watch) -> Reactor {
    Reactor::with_driver(watch.world().core(HOST), Arena::new(ARENA_BYTES), Arc::default())
}

/// Everything is read once more, without faults.
fn last_look(watch: &Watch, setup: &Setup, model: &Rc<RefCell<Model>>) {
    if setup.policy.is_none() {
        return;
    }
    let core = core(watch);
    let bench = Rc::new(Bench::new(watch, &core, setup, model));
    let done = Rc::new(Cell::new(false));
    let (flag, chance, sectors) = (done.clone(), watch.world().chance(), setup.sectors);
    core.spawn(async move {
        User { is_patient: true, ..User::new(bench, chance) }.read(0..sectors).await;
        flag.set(true);
    });
    watch.world().run(&[&core], || done.get() || watch.is_wrong());
}

/// One core with one unit.
struct Bench {
    watch: Watch,
    setup: Setup,
    reactor: Reactor,
    unit: Unit,
    model: Rc<RefCell<Model>>,
}

impl Bench {
    fn new(watch: &Watch, core: &Reactor, setup: &Setup, model: &Rc<RefCell<Model>>) -> Self {
        let traits = setup.traits();
        let store: Box<dyn Store> = match setup.policy {
            Some(policy) => {
                let how = How { direct: policy.direct.is_some(), durable: policy.durable, read_only: false };
                let open = || core.driver().open(Path::new(PATH), how).expect("the file was made");
                let health = Health::new(PATH.to_owned());
                lunar_file::over(core, [open(), open(), open()], policy, &health, traits.clone())
            }
            None => RamVolume::new(traits.size, false).and_then(|volume| volume.open(core)).expect("small"),
        };
        let ranges = Rc::new(Ranges::default());
        let unit = Unit {
            id: UnitId(0),
            identity: Arc::new(identity()),
            geometry: Geometry::of(&traits, 512).expect("whole blocks"),
            read_only: false,
            store,
            ranges: ranges.clone(),
            protection: None,
            medium: Medium::default(),
            tally: Tally::default(),
            exclusive: Rc::new(OneCore(ranges)),
            metadata: Arc::new(VolatileMemory::default()),
        };
        Self { watch: watch.clone(), setup: setup.clone(), reactor: core.clone(), unit, model: model.clone() }
    }
}

/// One task that uses the unit.
struct User {
    bench: Rc<Bench>,
    chance: Chance,
    slot: SlotContext,
    /// The values that it read last, which a compare-and-write compares.
    seen: Option<(usize, Vec<Value>)>,
    /// Whether it aborts nothing.
    is_patient: bool,
}

impl User {
    fn new(bench: Rc<Bench>, chance: Chance) -> Self {
        let slot = SlotContext::new(bench.reactor.arena().clone());
        Self { bench, chance, slot, seen: None, is_patient: false }
    }

    async fn step(&mut self) {
        if self.chance.odds(300_000) {
            let pause = Duration::from_micros(self.chance.within(0..=2_000));
            self.bench.reactor.clone().sleep(pause).await;
        }
        let sectors = self.any_range();
        match self.chance.index(12) {
            0..4 => self.read(sectors).await,
            4..7 => self.write(sectors).await,
            7 => self.fill(sectors).await,
            8 => self.unmap(sectors).await,
            9 | 10 => self.compare_write().await,
            _ => self.flush().await,
        }
        self.bench.watch.count_command();
    }

    fn any_range(&mut self) -> Range<usize> {
        let all = self.bench.setup.sectors;
        let start = self.chance.index(all);
        let len = self.chance.within(1..=STEP_SECTORS_MAX) as usize;
        start..(start + len).min(all)
    }

    async fn carry_out(&mut self, step: Step, out: Vec<u8>) -> (Result<(), Failure>, Vec<u8>) {
        let bench = self.bench.clone();
        let aborts = !self.is_patient && self.chance.odds(50_000);
        let abort_at = aborts.then(|| bench.reactor.now() + Duration::from_micros(self.chance.within(0..=500)));
        let memory = Memory {
            bench: &bench,
            out,
            input: RefCell::default(),
            chance: RefCell::new(self.chance.fork()),
            abort_at,
        };
        let mut final_data = FinalData::default();
        let result = carry_out(Admitted::to(&bench.unit), &step, &memory, &mut self.slot, &mut final_data).await;
        let result = result.map(|()| memory.take(final_data.offset, &final_data.data));
        let may_be = match (&result, &step) {
            (Ok(()), Step::Read { len, .. }) => memory.input.borrow().len() as u64 == *len,
            (Ok(()), _) => memory.input.borrow().is_empty(),
            (Err(Failure::Miscompare { .. }), Step::CompareWrite { .. }) => true,
            (Err(Failure::Fault { fault: Fault::Aborted, .. }), _) => memory.aborted(),
            (Err(Failure::Fault { fault, .. }), step) => bench.setup.may_fail(*fault, step),
            (Err(_), _) => false,
        };
        let input = memory.input.into_inner();
        if !may_be {
            bench.watch.report(format!("{step:?} ended with {result:?} and {} bytes", input.len()));
        }
        (result, input)
    }

    async fn read(&mut self, sectors: Range<usize>) {
        let begun = self.bench.model.borrow_mut().begin_read();
        let (offset, len) = bytes_of(&sectors);
        let (result, bytes) = self.carry_out(Step::Read { offset, len }, Vec::new()).await;
        if result.is_err() {
            return self.bench.model.borrow_mut().give_up_read(begun);
        }
        let found = stamp::read(self.bench.watch.seed(), sectors.start, &bytes).and_then(|values| {
            self.bench.model.borrow_mut().end_read(begun, sectors.start, &values)?;
            Ok(values)
        });
        match found {
            Ok(values) => self.seen = Some((sectors.start, values)),
            Err(what) => self.bench.watch.report(what),
        }
    }

    async fn write(&mut self, sectors: Range<usize>) {
        let value = self.bench.model.borrow_mut().fresh_value();
        let out = stamp::fill(self.bench.watch.seed(), sectors.clone(), value);
        let (offset, len) = bytes_of(&sectors);
        let durable = self.chance.odds(300_000);
        let write = self.bench.model.borrow_mut().begin_write(sectors, value);
        let (result, _) = self.carry_out(Step::Write { offset, len, durable }, out).await;
        let durable = durable || self.bench.setup.is_durable();
        self.bench.model.borrow_mut().end_write(write, end(result.is_ok(), durable));
    }

    /// A change of space; where writes are durable it ends with a flush of its own.
    async fn change_space(&mut self, sectors: Range<usize>, step: Step, is_hint: bool) {
        let (model, durable) = (self.bench.model.clone(), self.bench.setup.is_durable());
        let write = model.borrow_mut().begin_write(sectors, ZEROES);
        let flush = durable.then(|| model.borrow_mut().begin_flush());
        let (result, _) = self.carry_out(step, Vec::new()).await;
        let how = if is_hint { End::Perhaps } else { end(result.is_ok(), durable) };
        model.borrow_mut().end_write(write, how);
        if let Some(flush) = flush {
            model.borrow_mut().end_flush(flush, result.is_ok());
        }
    }

    async fn fill(&mut self, sectors: Range<usize>) {
        let (offset, len) = bytes_of(&sectors);
        let step = Step::Fill { offset, len, pattern: Vec::new(), unmap: self.chance.coin() };
        self.change_space(sectors, step, false).await;
    }

    async fn unmap(&mut self, sectors: Range<usize>) {
        let step = Step::Unmap(vec![bytes_of(&sectors)]);
        self.change_space(sectors, step, true).await;
    }

    async fn flush(&mut self) {
        let flush = self.bench.model.borrow_mut().begin_flush();
        let (result, _) = self.carry_out(Step::Flush, Vec::new()).await;
        self.bench.model.borrow_mut().end_flush(flush, result.is_ok());
    }

    async fn compare_write(&mut self) {
        let Some((first, expected)) = self.seen.take() else { return };
        let (sectors, seed) = (first..first + expected.len(), self.bench.watch.seed());
        let mut out = Vec::new();
        for (sector, value) in sectors.clone().zip(&expected) {
            out.extend(stamp::fill(seed, sector..sector + 1, *value));
        }
        let (write, begun, value) = {
            let mut model = self.bench.model.borrow_mut();
            let value = model.fresh_value();
            (model.begin_write(sectors.clone(), value), model.begin_read(), value)
        };
        out.extend(stamp::fill(seed, sectors.clone(), value));
        let (offset, len) = bytes_of(&sectors);
        let durable = self.chance.coin();
        let (result, _) = self.carry_out(Step::CompareWrite { offset, len, durable }, out).await;
        let mut model = self.bench.model.borrow_mut();
        model.give_up_read(begun);
        match result {
            Ok(()) => {
                if let Err(what) = model.compared(write, &expected) {
                    self.bench.watch.report(what);
                }
                model.end_write(write, end(true, durable || self.bench.setup.is_durable()));
            }
            Err(Failure::Miscompare { .. }) => {
                model.end_write(write, End::Nothing);
                if model.must_be(begun, first, &expected) {
                    self.bench.watch.report(format!("a compare of {sectors:?} missed what surely was there"));
                }
            }
            Err(_) => model.end_write(write, End::Perhaps),
        }
    }
}

fn end(is_good: bool, durable: bool) -> End {
    if is_good { End::Good { durable } } else { End::Perhaps }
}

/// Offset and length in bytes.
fn bytes_of(sectors: &Range<usize>) -> (u64, u64) {
    ((sectors.start * SECTOR) as u64, (sectors.len() * SECTOR) as u64)
}

/// A transfer from and to memory, in pieces, with pauses.
struct Memory<'a> {
    bench: &'a Bench,
    out: Vec<u8>,
    input: RefCell<Vec<u8>>,
    chance: RefCell<Chance>,
    abort_at: Option<Instant>,
}

impl Memory<'_> {
    fn take(&self, offset: usize, data: &Sg) {
        let mut input = self.input.borrow_mut();
        if offset != input.len() {
            self.bench.watch.report(format!("Data-In at {offset} instead of {}", input.len()));
        }
        input.extend(data.to_vec());
    }

    async fn pause(&self) {
        let pause = self.chance.borrow_mut().within(0..=3);
        if pause == 0 {
            let wait = Duration::from_micros(self.chance.borrow_mut().within(0..=300));
            self.bench.reactor.sleep(wait).await;
        }
    }
}

impl Transfer for Memory<'_> {
    async fn room(&self) -> Result<(), Fault> {
        self.pause().await;
        if self.aborted() { Err(Fault::Aborted) } else { Ok(()) }
    }

    async fn pull(&self, offset: usize, len: usize) -> Result<Sg, Fault> {
        self.pause().await;
        if self.aborted() {
            return Err(Fault::Aborted);
        }
        // Data comes in pieces of any length, as a network cuts it.
        let (mut data, mut at) = (Sg::default(), offset);
        while at < offset + len {
            let count = 1 + self.chance.borrow_mut().index(offset + len - at);
            let mut piece = self.bench.reactor.arena().take(count).ok_or(Fault::NoMemory)?;
            piece.copy_from_slice(&self.out[at..at + count]);
            data.push(piece.share());
            at += count;
        }
        Ok(data)
    }

    fn push(&self, offset: usize, data: Sg) -> Result<(), Fault> {
        self.take(offset, &data);
        if self.aborted() { Err(Fault::Aborted) } else { Ok(()) }
    }

    fn aborted(&self) -> bool {
        self.abort_at.is_some_and(|at| self.bench.reactor.now() >= at)
    }
}

/// The identity of the unit.
fn identity() -> Identity {
    Identity {
        vendor: "LUNAR".into(),
        product: "SIMULATED".into(),
        revision: "1".into(),
        serial: "0".into(),
        uuid: [0; 16],
        naa: [0x30, 0, 0, 0, 0, 0, 0, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_fails_by_what_it_does_alone() {
        let policy = Some(Policy { durable: false, direct: None });
        let of = |faults: Faults, policy| Setup { sectors: 8, policy, tasks: 1, steps: 1, faults };
        let write = |durable| Step::Write { offset: 0, len: 512, durable };
        let steps = [Step::Read { offset: 0, len: 512 }, write(false), write(true), Step::Flush];
        let fails = |setup: &Setup, fault| steps.each_ref().map(|step| setup.may_fail(fault, step));
        let calm = Faults::none();
        for (faults, medium) in [
            (calm.clone(), [false; 4]),
            (Faults { read_error: 1, ..calm.clone() }, [true, false, false, false]),
            (Faults { write_error: 1, ..calm.clone() }, [false, true, true, true]),
            (Faults { sync_error: 1, ..calm.clone() }, [false, false, true, true]),
        ] {
            assert_eq!(fails(&of(faults.clone(), policy), Fault::Medium), medium, "{faults:?}");
            assert_eq!(fails(&of(faults, None), Fault::Medium), [false; 4], "memory never fails");
        }
        let full = of(Faults { no_space: 1, ..calm }, policy);
        assert_eq!(fails(&full, Fault::NoSpace), [false, true, true, false]);
        assert_eq!(fails(&full, Fault::NoMemory), [false; 4]);
    }
}
