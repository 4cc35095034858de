use super::identity;
use super::maker::{Order, make};
use super::program::{Call, Started, Starter, call, set_starter};
use super::schema::Dataset;
use lunar_control::value::Textual;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Calls that were made, and shell commands in the place of the program.
#[derive(Debug, Default)]
struct Shell {
    children: Mutex<BTreeMap<i32, Child>>,
}

/// The calls of all tests of this process, in their order.
static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The shell command in the place of a call.
fn script(words: &str) -> &'static str {
    match words {
        _ if words.starts_with("clone tank/refused") => {
            "echo \"cannot create 'tank/new': permission denied\" >&2; exit 1"
        }
        _ if words.starts_with("snapshot tank/hangs") => "sleep 600",
        _ if words.starts_with("destroy tank/kept") => "echo 'dataset is busy' >&2; exit 1",
        _ if words.starts_with("set snapdev=visible tank/kept") => "echo 'no such pool' >&2; exit 1",
        _ if words.starts_with("get -Hp -o value guid tank/known") => "echo 6787635479970477172",
        _ if words.starts_with("get -Hp -o value guid") => "echo 'dataset does not exist' >&2; exit 1",
        _ if words.starts_with("get ") => "echo told; echo said >&2",
        _ => "exit 0",
    }
}

impl Starter for Shell {
    fn start(&self, call: &Call, output: OwnedFd) -> io::Result<Started> {
        let words = call.arguments().join(" ");
        let mut command = Command::new("sh");
        command.args(["-c", script(&words)]).stdout(Stdio::from(output)).stderr(Stdio::piped());
        CALLS.lock().unwrap_or_else(PoisonError::into_inner).push(words);
        let mut child = command.spawn()?;
        let id = Pid::from_child(&child);
        let errors = child.stderr.take().expect("it is piped").into();
        self.children.lock().unwrap_or_else(PoisonError::into_inner).insert(id.as_raw_nonzero().get(), child);
        Ok(Started { id, handle: pidfd_open(id, PidfdFlags::empty())?, errors })
    }

    fn has_succeeded(&self, process: Pid) -> io::Result<bool> {
        let child =
            self.children.lock().unwrap_or_else(PoisonError::into_inner).remove(&process.as_raw_nonzero().get());
        Ok(child.expect("it was started").wait()?.success())
    }

    fn kill(&self, process: Pid) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        let child = children.get_mut(&process.as_raw_nonzero().get()).expect("it was started");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
}

fn dataset(name: &str) -> Dataset {
    set_starter(Box::<Shell>::default());
    Dataset::parse(name).expect("a name")
}

fn calls_about(name: &str) -> Vec<String> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|call| call.contains(name)).cloned().collect()
}

/// Why a store is not made.
fn refused(name: &str, order: &Order) -> String {
    match make(&dataset(name), order) {
        Ok(_) => panic!("it was made"),
        Err(why) => why.to_string(),
    }
}

#[test]
fn what_was_made_before_an_error_is_removed() {
    let source = dataset("tank/refused");
    let why = refused("tank/new", &Order::Clone(source));
    assert_eq!(why, "zfs: cannot create 'tank/new': permission denied; `zfs allow` gives the user of Lunar the right");
    assert_eq!(
        calls_about("tank/refused"),
        [
            "snapshot tank/refused@lunar-clone-new",
            "clone tank/refused@lunar-clone-new tank/new",
            "destroy tank/refused@lunar-clone-new"
        ]
    );
}

#[test]
fn what_cannot_be_removed_is_told_with_its_command() {
    let why = refused("tank/kept@now", &Order::Snapshot);
    assert_eq!(why, "zfs: no such pool; this is left, remove it: zfs destroy tank/kept@now");
}

#[test]
fn a_program_that_does_not_end_is_killed() {
    let hangs = Call::Snapshot(dataset("tank/hangs@a"));
    let why = call(&hangs, Duration::from_millis(300)).expect_err("it takes longer").to_string();
    assert!(why.starts_with("zfs has not ended within 0 s"), "{why}");
}

#[test]
fn the_output_and_the_errors_are_told_apart() {
    let told = call(&Call::Space(vec![dataset("tank/a")]), Duration::from_secs(20)).expect("it succeeds");
    assert_eq!(told, "told\n");
}

#[test]
fn a_zvol_is_known_by_the_number_that_zfs_tells() {
    assert_eq!(identity::of(&dataset("tank/known")).as_deref(), Some("6787635479970477172"));
    assert_eq!(identity::of(&dataset("tank/gone")), None);
}
