use super::*;
use crate::error::{EEXIST, EPERM};
use lunar_blk::Limits;
use std::cell::{Cell, RefCell};
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const ENODEV: Fault = Fault::Gone;
/// The process of the test, and another one.
const PID: u32 = 99;
const OTHER: u32 = 55;
const VOLUME: [u8; 16] = [0x11; 16];

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
    /// Whether a recovery has begun that did not come to its queues: then older kernels refuse another one.
    is_half: Cell<bool>,
    /// Features that it gives, and does not give, without being asked.
    adds: u64,
    clears: u64,
    /// Whether it forgets the volume of a device.
    forgets: bool,
    /// Whether a program has the disk open.
    is_open: Cell<bool>,
    lives: bool,
    /// Whether this process is that of an ordinary user, and the pauses until the node of a new device is its own.
    is_ordinary: bool,
    owned_after: Cell<u32>,
    user: Option<DiskUser>,
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
        if number == Control::GET_DEV_INFO2 && self.owned_after.get() > 0 {
            return Err(Fault::Os(EACCES));
        }
        if matches!(number, Control::GET_DEV_INFO | Control::GET_DEV_INFO2) {
            assert_eq!(number == Control::GET_DEV_INFO2, self.is_ordinary);
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
                info.flags = (info.flags | self.adds) & !self.clears;
                memory.copy_from_slice(info.as_bytes());
                info.volume = if self.forgets { [0; 16] } else { info.volume };
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
                return Err(Fault::Os(EBUSY));
            }
            Control::START_USER_RECOVERY if self.is_half.replace(true) => return Err(Fault::Os(EINVAL)),
            Control::TRY_STOP_DEV if self.is_open.get() => return Err(Fault::Os(EBUSY)),
            Control::DEL_DEV_ASYNC if self.is_ordinary => return Err(Fault::Os(EINVAL)),
            Control::DEL_DEV => *device = None,
            Control::DEL_DEV_ASYNC if !self.is_open.get() => *device = None,
            _ => {}
        }
        Ok(0)
    }

    fn called(&self, number: Control) -> bool {
        self.calls.borrow().iter().any(|(called, _)| *called == number)
    }
}

impl Kernel for Fake {
    fn rights(&self) -> Rights {
        if self.is_ordinary { Rights::Unprivileged } else { Rights::Privileged }
    }

    fn call(&self, command: ControlCommand, memory: &mut [u8]) -> impl Future<Output = Result<u32, Fault>> {
        ready(self.answer(command, memory))
    }

    fn pause(&self, _time: Duration) -> impl Future<Output = ()> {
        self.owned_after.set(self.owned_after.get().saturating_sub(1));
        let left = self.dies_after.get();
        self.dies_after.set(left.saturating_sub(1));
        if left == 1
            && let Some(info) = &mut *self.device.borrow_mut()
        {
            info.state = State::QUIESCED.0;
        }
        ready(())
    }

    fn lives(&self, _pid: u32) -> bool {
        self.lives
    }

    fn user_of(&self, _number: u32) -> Option<DiskUser> {
        self.user.clone()
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the fake kernel answers at once"),
    }
}

fn request() -> DiskRequest {
    let key = Key::of("web", VOLUME);
    DiskRequest { name: "web".into(), key, number: None, queues: 4, depth: 64, survives: true }
}

fn take(kernel: &Fake) -> Result<Claim, DeviceError> {
    now(claim(kernel, &request(), PID))
}

fn old(state: State, volume: [u8; 16]) -> DeviceInfo {
    let (private, flags) = (Key::of("web", volume).private, RECOVERY | feature::CMD_IOCTL_ENCODE);
    let (number, pid) = (7, OTHER as i32);
    DeviceInfo { queues: 1, state: state.0, number, private, volume, pid, flags, ..DeviceInfo::default() }
}

#[test]
fn a_new_device_recovers_and_gets_parameters_before_it_starts() {
    let kernel = Fake::new();
    let claim = take(&kernel).expect("it is made");
    assert_eq!((claim.number, claim.queues, claim.depth, claim.is_old), (3, 2, 64, false));
    let info = kernel.device.borrow().expect("there is one");
    assert_eq!(info.flags, RECOVERY | feature::QUIESCE | feature::UPDATE_SIZE | feature::CMD_IOCTL_ENCODE);
    assert_eq!((info.depth, info.buffer_bytes, info.volume), (64, TRANSFER_BYTES, VOLUME));
    let limits =
        Limits::of(&lunar_blk::testing::Rig::default().set.unit(lunar_blk::testing::UNIT).expect("one").unit, false);
    let params = crate::params::params(&limits, claim.buffer_bytes);
    assert_eq!(
        now(set_params(&kernel, &claim, &params)),
        Ok(InForce { sectors: params.sectors, has_volatile_cache: true })
    );
    assert_eq!(now(start(&kernel, &claim, PID)), Ok(()));
    assert_eq!(now(resize(&kernel, &claim, 123)), Ok(()));
    let calls: Vec<_> = kernel.calls.take();
    let add = (Control::ADD_DEV, 0);
    assert_eq!(calls, [add, (Control::SET_PARAMS, 0), (Control::START_DEV, 99), (Control::UPDATE_SIZE, 123)]);
}

#[test]
fn a_volume_that_does_not_survive_is_not_recovered() {
    let kernel = Fake::new();
    let claim = now(claim(&kernel, &DiskRequest { survives: false, ..request() }, PID)).expect("it is made");
    let no_recovery = RECOVERY | feature::QUIESCE;
    assert_eq!(kernel.device.borrow().map(|info| info.flags & no_recovery), Some(0));
    assert!(!claim.quiesces());
}

#[test]
fn the_features_that_the_kernel_gives_are_compared() {
    let kernel = Fake { clears: feature::USER_RECOVERY_REISSUE, ..Fake::new() };
    let why = take(&kernel).expect_err("it would lose requests");
    assert!(why.to_string().contains("USER_RECOVERY_REISSUE") && kernel.device.borrow().is_none(), "{why}");
    let kernel = Fake { adds: feature::UNPRIVILEGED_DEV, ..Fake::new() };
    assert!(take(&kernel).expect_err("the kernel would kill Lunar").to_string().contains("UNPRIVILEGED_DEV"));
    let kernel = Fake { adds: 1 << 13 | 1 << 14, clears: WELCOME, ..Fake::new() };
    let claim = take(&kernel).expect("they change nothing");
    assert!(!claim.quiesces() && now(quiesce(&kernel, &claim)) == Quiet::Never && !kernel.called(Control::QUIESCE_DEV));
    let kernel = Fake { forgets: true, ..Fake::new() };
    assert!(take(&kernel).expect_err("it could not be told from others").to_string().contains("UUID"));
    assert!(kernel.device.borrow().is_none());
    let far = DiskRequest { number: Some(SEARCHED), ..request() };
    let kernel = Fake::new();
    let why = now(super::claim(&kernel, &far, PID)).expect_err("it would not be found again");
    assert!(why.to_string().contains("256 are the most") && kernel.device.borrow().is_none(), "{why}");
}

#[test]
fn a_device_that_was_left_is_taken_over() {
    let kernel = Fake::left(old(State::QUIESCED, VOLUME));
    kernel.busy.set(3);
    let claim = take(&kernel).expect("it is found");
    assert_eq!((claim.number, claim.queues, claim.is_old), (7, 1, true));
    assert!(kernel.calls.borrow().is_empty(), "nothing is changed yet");
    let mut params = Params { sectors: 8, logical_shift: 9, ..Params::default() };
    kernel.params.set(params);
    // The volume has a write cache now, but the kernel goes on without flushes.
    params.attributes = attribute::VOLATILE_CACHE;
    assert_eq!(now(set_params(&kernel, &claim, &params)), Ok(InForce { sectors: 8, has_volatile_cache: false }));
    params.sectors = 16;
    assert_eq!(
        now(set_params(&kernel, &claim, &params)),
        Ok(InForce { sectors: 8, has_volatile_cache: false }),
        "the volume has grown meanwhile"
    );
    assert!(!kernel.called(Control::START_USER_RECOVERY));
    now(recover(&kernel, &claim)).expect("the old process has ended");
    now(start(&kernel, &claim, PID)).expect("it starts");
    assert_eq!(kernel.calls.borrow().last(), Some(&(Control::END_USER_RECOVERY, 99)));
    assert!(!kernel.called(Control::SET_PARAMS), "an old device keeps its parameters");
}

#[test]
fn a_volume_that_does_not_fit_any_more_leaves_the_device_as_it_is() {
    let kernel = Fake::left(old(State::QUIESCED, VOLUME));
    let claim = take(&kernel).expect("it is found");
    let params = Params { sectors: 8, logical_shift: 9, ..Params::default() };
    kernel.params.set(params);
    for (changed, word) in [
        (Params { logical_shift: 12, ..params }, "blocks of 4096"),
        (Params { sectors: 7, ..params }, "only 7"),
        (Params { attributes: attribute::READ_ONLY, ..params }, "read-only"),
    ] {
        let why = now(set_params(&kernel, &claim, &changed)).expect_err(word);
        assert!(why.to_string().contains(word), "{why}");
    }
    assert!(!kernel.called(Control::START_USER_RECOVERY));
}

#[test]
fn a_takeover_may_be_repeated_at_each_step() {
    let kernel = Fake::left(old(State::QUIESCED, VOLUME));
    for step in 0..3 {
        let claim = take(&kernel).expect("it is found");
        assert!(claim.is_old, "step {step}");
        now(recover(&kernel, &claim)).expect("an older kernel has begun already");
    }
    let claim = take(&kernel).expect("it is found");
    kernel.refuses.set(Some(Fault::Os(4)));
    now(start(&kernel, &claim, PID)).expect_err("a signal");
    kernel.refuses.set(None);
    now(start(&kernel, &claim, PID)).expect("the second time");
    let kernel = Fake::left(DeviceInfo { flags: 0, ..old(State::QUIESCED, VOLUME) });
    kernel.is_half.set(true);
    assert!(now(recover(&kernel, &claim)).is_err(), "it cannot be recovered at all");
}

#[test]
fn a_process_that_is_ending_is_waited_for_and_one_that_serves_is_named() {
    let kernel = Fake::left(old(State::LIVE, VOLUME));
    kernel.dies_after.set(4);
    assert!(take(&kernel).expect("it is found").is_old);
    let kernel = Fake::left(old(State::LIVE, VOLUME));
    let why = take(&kernel).expect_err("it is in use");
    assert!(why.to_string().contains("/dev/ublkb7 is served by another process (55)"), "{why}");
    let kernel = Fake::left(DeviceInfo { pid: PID as i32, ..old(State::LIVE, VOLUME) });
    assert!(take(&kernel).expect_err("it does not end").to_string().contains("still ending"));
}

#[test]
fn requests_for_another_volume_are_never_taken_over() {
    let kernel = Fake::left(old(State::QUIESCED, [0x22; 16]));
    let why = take(&kernel).expect_err("it is another volume's");
    assert!(why.to_string().contains("another volume (22222222-2222-") && kernel.calls.borrow().is_empty(), "{why}");
    // One bit is enough.
    let mut close = VOLUME;
    close[15] ^= 1;
    assert!(take(&Fake::left(old(State::QUIESCED, close))).is_err());
    let private = Key::of("db", VOLUME).private;
    let kernel = Fake::left(DeviceInfo { private, ..old(State::QUIESCED, VOLUME) });
    assert_eq!(take(&kernel).map(|claim| claim.is_old), Ok(false), "another name");
    let kernel = Fake::left(old(State::QUIESCED, VOLUME));
    let elsewhere = DiskRequest { number: Some(8), ..request() };
    assert!(
        now(claim(&kernel, &elsewhere, PID)).expect_err("another number").to_string().contains("choose that number")
    );
}

#[test]
fn a_dead_device_makes_room_unless_it_is_somebodys() {
    let kernel = Fake::left(old(State::DEAD, [0x22; 16]));
    assert!(!take(&kernel).expect("nothing waits in a dead device").is_old);
    let kernel = Fake { lives: true, ..Fake::left(old(State::DEAD, VOLUME)) };
    let why = take(&kernel).expect_err("another process makes it");
    assert!(
        why.to_string().contains("being made by another process (55)") && !kernel.called(Control::DEL_DEV_ASYNC),
        "{why}"
    );
    let kernel = Fake { lives: true, ..Fake::left(DeviceInfo { pid: -1, ..old(State::DEAD, VOLUME) }) };
    kernel.is_open.set(true);
    let why = take(&kernel).expect_err("a program has it open");
    assert!(why.to_string().contains("lsof /dev/ublkb7") && !kernel.called(Control::ADD_DEV), "{why}");
}

#[test]
fn a_removal_tells_whether_the_device_is_gone() {
    let kernel = Fake::left(old(State::DEAD, VOLUME));
    kernel.is_open.set(true);
    assert_eq!(now(remove(&kernel, 7, true)), Ok(Removal::Held));
    kernel.is_open.set(false);
    assert_eq!(now(remove(&kernel, 7, true)), Ok(Removal::Done));
    kernel.refuses.set(Some(ENODEV));
    assert_eq!(now(remove(&kernel, 7, true)), Ok(Removal::Done), "it is gone already");
}

#[test]
fn devices_without_a_section_are_told_and_removed_only_when_nothing_uses_them() {
    let kernel = Fake { features: 1 << 17, ..Fake::left(old(State::QUIESCED, VOLUME)) };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let left = now(left_behind(&kernel, &names(&["db"]))).expect("it may ask");
    assert_eq!(left.iter().map(|found| found.number).collect::<Vec<_>>(), [7]);
    let words = about_left(&left[0], "ublk-7");
    assert!(words.contains("11111111-1111-") && words.contains("lunar session kick ublk-7"), "{words}");
    assert_eq!(now(left_behind(&kernel, &names(&["db", "web"]))), Ok(Vec::new()), "it has a section");
    kernel.is_open.set(true);
    assert!(now(discard_left(&kernel, 7)).expect_err("it is open").to_string().contains("has it open"));
    kernel.is_open.set(false);
    assert_eq!(now(discard_left(&kernel, 7)), Ok(Removal::Done));
    let user = Some(DiskUser::Mounted("ublkb7".to_owned(), "/mnt".to_owned()));
    let kernel = Fake { user, ..Fake::left(old(State::QUIESCED, VOLUME)) };
    let why = now(discard_left(&kernel, 7)).expect_err("it is mounted");
    assert!(why.to_string().contains("mounted at /mnt") && kernel.calls.borrow().is_empty(), "{why}");
    for foreign in [DeviceInfo { private: 7, ..old(State::QUIESCED, VOLUME) }, old(State::LIVE, VOLUME)] {
        let kernel = Fake::left(foreign);
        assert_eq!(now(left_behind(&kernel, &[])), Ok(Vec::new()), "it is not Lunar's, or is served");
        assert!(now(discard_left(&kernel, 7)).is_err() && kernel.calls.borrow().is_empty());
    }
}

#[test]
fn failures_say_what_to_do() {
    let kernel = Fake { features: 0, ..Fake::default() };
    assert!(take(&kernel).expect_err("too old").to_string().contains("Linux 6.5"));
    let kernel = Fake::new();
    for (fault, advice) in [
        (Fault::Os(EPERM), "CAP_SYS_ADMIN"),
        (Fault::Os(EEXIST), "choose another"),
        (Fault::NoMemory, "lower `depth`"),
        (Fault::Os(EBUSY), "end it"),
        (Fault::Gone, "apply the configuration again"),
        (Fault::Os(5), "dmesg"),
    ] {
        kernel.refuses.set(Some(fault));
        let why = take(&kernel).expect_err("refused");
        assert!(why.to_string().contains(advice), "{why}");
    }
    let (number, queues, depth, buffer_bytes) = (1, 1, 1, 4096);
    let claim = Claim { number, queues, depth, buffer_bytes, is_old: false, features: 0x1fe, flags: 0 };
    kernel.refuses.set(Some(Fault::Os(22)));
    assert!(now(start(&kernel, &claim, 1)).expect_err("wrong pid").to_string().contains("PID namespace"));
    assert!(now(resize(&kernel, &claim, 1)).expect_err("too old").to_string().contains("6.16"));
}

#[test]
fn features_have_names() {
    assert_eq!(feature_names(0b1011000), ["USER_RECOVERY", "USER_RECOVERY_REISSUE", "CMD_IOCTL_ENCODE"]);
    assert_eq!(feature_names(UNFIT).len(), 9);
}

#[test]
fn a_device_of_an_ordinary_user_is_waited_for_and_ends_with_its_process() {
    let kernel = Fake { is_ordinary: true, owned_after: Cell::new(3), ..Fake::new() };
    let claim = take(&kernel).expect("it is made");
    assert_eq!(claim.flags & feature::UNPRIVILEGED_DEV, feature::UNPRIVILEGED_DEV);
    assert_eq!(claim.flags & (RECOVERY | feature::QUIESCE), 0, "the kernel would clear them");
    assert_eq!(now(remove(&kernel, claim.number, true)), Ok(Removal::Done));
    assert!(kernel.called(Control::DEL_DEV), "the other command is for privileged processes");
}

#[test]
fn a_device_that_does_not_become_that_of_its_user_is_told() {
    let kernel = Fake { is_ordinary: true, owned_after: Cell::new(LOOKS * 2), ..Fake::new() };
    let why = take(&kernel).expect_err("its node stays that of root");
    assert_eq!(why, DeviceError::Unfit(Step::Make("web".into()), Unfit::NotOwned(3)));
    assert!(why.to_string().contains("udev"), "{why}");
}

#[test]
fn a_device_that_an_ordinary_process_has_left_is_made_anew() {
    let dead = DeviceInfo { flags: feature::UNPRIVILEGED_DEV | feature::CMD_IOCTL_ENCODE, ..old(State::DEAD, VOLUME) };
    let kernel = Fake { is_ordinary: true, ..Fake::left(dead) };
    let claim = take(&kernel).expect("it is made");
    assert!(!claim.is_old && kernel.called(Control::ADD_DEV));
}

#[test]
fn only_a_device_that_nobody_serves_or_uses_is_cleared_away() {
    let served = Fake { lives: true, ..Fake::left(old(State::LIVE, VOLUME)) };
    assert_eq!(now(clear_away(&served, 7)), Err(DeviceError::Stays(7, Stays::Served)));
    let user = DiskUser::Swap("ublkb7".into());
    let used = Fake { user: Some(user.clone()), ..Fake::left(old(State::QUIESCED, VOLUME)) };
    assert_eq!(now(clear_away(&used, 7)), Err(DeviceError::Stays(7, Stays::Used(user))));
    let foreign = Fake::left(DeviceInfo { private: 1, ..old(State::DEAD, VOLUME) });
    assert_eq!(now(clear_away(&foreign, 7)), Err(DeviceError::Stays(7, Stays::Served)));
    for state in [State::DEAD, State::QUIESCED, State::LIVE] {
        let left = Fake::left(old(state, VOLUME));
        assert_eq!(now(clear_away(&left, 7)), Ok(Removal::Done));
        assert!(left.called(Control::STOP_DEV) && left.device.borrow().is_none());
        assert_eq!(now(clear_away(&left, 7)), Ok(Removal::Done), "it is gone");
    }
}

#[test]
fn a_device_is_stopped_only_if_no_program_has_it_open_where_the_kernel_can_tell() {
    let kernel = Fake::new();
    take(&kernel).expect("it is made");
    let try_stop = |features: u64| now(stop_unused(&kernel, 3, features));
    assert_eq!(try_stop(0), Ok(Stopped::Unknown));
    kernel.is_open.set(true);
    assert_eq!(try_stop(feature::SAFE_STOP), Ok(Stopped::Open));
    kernel.is_open.set(false);
    assert_eq!(try_stop(feature::SAFE_STOP), Ok(Stopped::Done));
    assert!(!kernel.called(Control::STOP_DEV));
}

#[test]
fn a_device_whose_requests_are_too_long_for_its_volume_is_not_taken_over() {
    let kernel = Fake::left(old(State::QUIESCED, VOLUME));
    let claim = take(&kernel).expect("it is found");
    let params = Params { sectors: 8, logical_shift: 9, sectors_max: 1024, ..Params::default() };
    kernel.params.set(params);
    assert!(now(set_params(&kernel, &claim, &Params { sectors_max: 2048, ..params })).is_ok());
    let shorter = now(set_params(&kernel, &claim, &Params { sectors_max: 512, ..params })).expect_err("it cannot");
    assert!(
        shorter.to_string().contains("up to 1024 sectors") && shorter.to_string().contains("only 512"),
        "{shorter}"
    );
}
