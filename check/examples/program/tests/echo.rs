//! The example front, served by the program at the address of its own option.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The time after which the test fails: no answer takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program, which ends with the test.
struct Program {
    child: Child,
    state: PathBuf,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

#[test]
fn the_option_of_a_front_works_in_the_program_that_registers_it() {
    let state = std::env::temp_dir().join(format!("lunar-examples-echo-{}", std::process::id()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_lunar-examples"))
        .args(["serve", "ram:1M", "--echo", "127.0.0.1:0", "--cores", "1", "--memory", "16"])
        .env("STATE_DIRECTORY", &state)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let output = child.stdout.take().expect("it is piped");
    let _program = Program { child, state };
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let first = lines.next().expect("a banner");
    assert!(first.ends_with(" serves 1 volume over echo"), "a front with an address is served alone: {first}");
    let address = lines.find_map(|line| line.trim().strip_prefix("echo ")?.trim().parse::<SocketAddr>().ok());
    let mut stream = TcpStream::connect(address.expect("a line with its address")).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(b"hello").expect("sent");
    let mut back = [0; 5];
    stream.read_exact(&mut back).expect("received");
    assert_eq!(&back, b"hello");
}

#[test]
fn the_help_of_a_program_has_the_options_of_its_fronts() {
    let help =
        Command::new(env!("CARGO_BIN_EXE_lunar-examples")).args(["serve", "--help"]).output().expect("it starts");
    let text = String::from_utf8(help.stdout).expect("UTF-8");
    for option in ["--listen <ADDRESS>", "--nvme <ADDRESS>", "--vm <NAME>", "--echo <ADDRESS>", "--drain <SECONDS>"] {
        assert!(text.contains(option), "{option}: {text}");
    }
}
