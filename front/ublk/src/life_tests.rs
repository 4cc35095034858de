use super::*;
use lunar_blk::Limits;
use std::cell::{Cell, RefCell};
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const ENODEV: Fault = Fault::Gone;
const EBUSY: Fault = Fault::Os(16);

/// A kernel with one device at most, which answers at once.
#[derive(Default)]
struct Fake {
    features: u64,
    device: RefCell<Option<DeviceInfo>>,
    params: Cell<Params>,
    calls: RefCell<Vec<(Control, u64)>>,
    /// How often a recovery is refused, because the old process is still ending.
    busy: Cell<u32>,
    /// Pauses after which a device is not live any more.
    dies_after: Cell<u32>,
    refuses: Cell<Option<Fault>>,
}

impl Fake {
    fn new() -> Self {
        Self { features: 0x7fff, ..Self::default() }
    }

    fn left(info: DeviceInfo) -> Self {
        Self { device: RefCell::new(Some(info)), ..Self::new() }
    }

    fn answer(&self, command: ControlCommand, memory: &mut [u8]) -> Result<u32, Fault> {
        let number = command.number;
        if number == Control::GET_FEATURES {
            memory.copy_from_slice(&self.features.to_ne_bytes());
            return if self.features == 0 { Err(Fault::Unsupported) } else { Ok(0) };
        }
        let mut device = self.device.borrow_mut();
        if number == Control::GET_DEV_INFO {
            let info = device.filter(|info| info.number == command.device).ok_or(ENODEV)?;
            memory.copy_from_slice(info.as_bytes());
            return Ok(0);
        }
        self.calls.borrow_mut().push((number, command.data));
        if let Some(why) = self.refuses.get() {
            return Err(why);
        }
        match number {
            Control::ADD_DEV => {
                let mut info = DeviceInfo::default();
                info.as_mut_bytes().copy_from_slice(memory);
                info.number = if info.number == ANY_NUMBER { 3 } else { info.number };
                info.queues = info.queues.min(2);
                memory.copy_from_slice(info.as_bytes());
                *device = Some(info);
            }
            Control::SET_PARAMS => {
                let mut params = Params::default();
                params.as_mut_bytes().copy_from_slice(memory);
                self.params.set(params);
            }
            Control::GET_PARAMS => memory.copy_from_slice(self.params.get().as_bytes()),
            Control::START_USER_RECOVERY if self.busy.get() > 0 => {
                self.busy.set(self.busy.get() - 1);
                return Err(EBUSY);
            }
            Control::DEL_DEV_ASYNC => *device = None,
            _ => {}
        }
        Ok(0)
    }
}

impl Kernel for Fake {
    fn call(&self, command: ControlCommand, memory: &mut [u8]) -> impl Future<Output = Result<u32, Fault>> {
        ready(self.answer(command, memory))
    }

    fn pause(&self, _time: Duration) -> impl Future<Output = ()> {
        let left = self.dies_after.get();
        self.dies_after.set(left.saturating_sub(1));
        if left == 1
            && let Some(info) = &mut *self.device.borrow_mut()
        {
            info.state = State::QUIESCED.0;
        }
        ready(())
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the fake kernel answers at once"),
    }
}

fn request() -> DiskRequest {
    let key = Key::of("web", "/srv/web.img");
    DiskRequest { name: "web".into(), key, number: None, queues: 4, depth: 64, survives: true }
}

fn old(state: State, volume: &str) -> DeviceInfo {
    let private = Key::of("web", volume).0;
    DeviceInfo { queues: 1, state: state.0, number: 7, private, pid: 55, ..DeviceInfo::default() }
}

#[test]
fn a_new_device_recovers_and_gets_parameters_before_it_starts() {
    let kernel = Fake::new();
    let claim = now(claim(&kernel, &request())).expect("it is made");
    assert_eq!((claim.number, claim.queues, claim.is_old), (3, 2, false));
    let info = kernel.device.borrow().expect("there is one");
    assert_eq!(info.flags, RECOVERY | feature::CMD_IOCTL_ENCODE);
    assert_eq!((info.depth, info.buffer_bytes), (64, TRANSFER_BYTES));
    let limits =
        Limits::of(&lunar_blk::testing::Rig::default().set.unit(lunar_blk::testing::UNIT).expect("one").unit, false);
    let params = crate::params::params(&limits, claim.buffer_bytes);
    assert_eq!(now(set_params(&kernel, &claim, &params)), Ok(InForce { resizes: false, has_volatile_cache: true }));
    assert_eq!(now(start(&kernel, &claim, 99)), Ok(()));
    assert_eq!(now(resize(&kernel, &claim, 123)), Ok(()));
    let calls: Vec<_> = kernel.calls.take();
    let add = (Control::ADD_DEV, 0);
    assert_eq!(calls, [add, (Control::SET_PARAMS, 0), (Control::START_DEV, 99), (Control::UPDATE_SIZE, 123)]);
}

#[test]
fn a_volume_that_does_not_survive_is_not_recovered() {
    let kernel = Fake::new();
    now(claim(&kernel, &DiskRequest { survives: false, ..request() })).expect("it is made");
    assert_eq!(kernel.device.borrow().map(|info| info.flags & RECOVERY), Some(0));
}

#[test]
fn a_device_that_was_left_is_taken_over() {
    let kernel = Fake::left(old(State::QUIESCED, "/srv/web.img"));
    kernel.busy.set(3);
    let claim = now(claim(&kernel, &request())).expect("it is recovered");
    assert_eq!((claim.number, claim.queues, claim.is_old), (7, 1, true));
    let mut params = Params { sectors: 8, logical_shift: 9, ..Params::default() };
    kernel.params.set(params);
    // The volume has a write cache now, but the kernel goes on without flushes.
    params.attributes = attribute::VOLATILE_CACHE;
    assert_eq!(now(set_params(&kernel, &claim, &params)), Ok(InForce { resizes: false, has_volatile_cache: false }));
    params.sectors = 16;
    assert_eq!(
        now(set_params(&kernel, &claim, &params)),
        Ok(InForce { resizes: true, has_volatile_cache: false }),
        "the volume has grown meanwhile"
    );
    params.logical_shift = 12;
    assert!(now(set_params(&kernel, &claim, &params)).is_err());
    now(start(&kernel, &claim, 99)).expect("it starts");
    assert_eq!(kernel.calls.borrow().last(), Some(&(Control::END_USER_RECOVERY, 99)));
    let set = kernel.calls.borrow().iter().any(|(number, _)| *number == Control::SET_PARAMS);
    assert!(!set, "an old device keeps its parameters");
}

#[test]
fn a_process_that_is_ending_is_waited_for_and_one_that_serves_is_named() {
    let kernel = Fake::left(old(State::LIVE, "/srv/web.img"));
    kernel.dies_after.set(4);
    assert!(now(claim(&kernel, &request())).expect("it is recovered").is_old);
    let kernel = Fake::left(old(State::LIVE, "/srv/web.img"));
    let why = now(claim(&kernel, &request())).expect_err("it is in use");
    assert!(why.contains("/dev/ublkb7 is served by another process (55)"), "{why}");
}

#[test]
fn requests_for_another_volume_are_never_taken_over() {
    let kernel = Fake::left(old(State::QUIESCED, "/srv/other.img"));
    let why = now(claim(&kernel, &request())).expect_err("it is another volume's");
    assert!(why.contains("another volume") && kernel.calls.borrow().is_empty(), "{why}");
    let kernel = Fake::left(old(State::DEAD, "/srv/other.img"));
    assert!(!now(claim(&kernel, &request())).expect("nothing waits in a dead device").is_old);
    let kernel = Fake::left(DeviceInfo { private: Key::of("db", "/srv/web.img").0, ..old(State::QUIESCED, "") });
    assert_eq!(now(claim(&kernel, &request())).map(|claim| claim.is_old), Ok(false), "another name");
}

#[test]
fn failures_say_what_to_do() {
    let kernel = Fake { features: 0, ..Fake::default() };
    assert!(now(claim(&kernel, &request())).expect_err("too old").contains("Linux 6.5"));
    let kernel = Fake::new();
    kernel.refuses.set(Some(Fault::Os(1)));
    assert!(now(claim(&kernel, &request())).expect_err("no right").contains("CAP_SYS_ADMIN"));
    kernel.refuses.set(Some(Fault::Os(17)));
    assert!(now(claim(&kernel, &request())).expect_err("taken").contains("choose another"));
    let claim = Claim { number: 1, queues: 1, buffer_bytes: 4096, is_old: false, features: 0x1fe };
    kernel.refuses.set(Some(Fault::Os(22)));
    assert!(now(start(&kernel, &claim, 1)).expect_err("wrong pid").contains("PID namespace"));
    assert!(now(resize(&kernel, &claim, 1)).expect_err("too old").contains("6.16"));
}

#[test]
fn features_have_names() {
    assert_eq!(feature_names(0b1011000), ["USER_RECOVERY", "USER_RECOVERY_REISSUE", "CMD_IOCTL_ENCODE"]);
}
