//! Scheduled Transfer between two processes: Transfers of all lengths over UDP and over frames, several links of which
//! one dies, packets of a stranger, and a peer that is killed.

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{bound, run, stream};
use crate::report::skip;
use crate::target::Lab;

/// The time for a gigabyte between two processes of the build with checks on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// The time after which a peer that was killed is reported: five seconds of silence, three questions, and some more.
const SILENCE: Duration = Duration::from_secs(40);

pub(crate) fn part(lab: &Lab) -> Result<()> {
    let program = lab.built()?.with_file_name("lunar-st");
    if !program.exists() {
        return skip("lunar-st is not built beside the target: cargo build -p lunar-st");
    }
    let check = |name: &str, case: &dyn Fn() -> Result<()>| lab.report.check("st", name, case);
    for (len, count) in [(0, 3), (1, 100), (4096, 300), (1_000_003, 20), (1 << 30, 1)] {
        check(&format!("{count} Transfers of {len} bytes over UDP"), &|| over_udp(&program, len, count));
    }
    check("Transfers while a stranger sends packets", &|| beside_a_stranger(&program));
    check("Transfers over frames", &|| over_frames(&program, &lab.scratch));
    check("Transfers over three links, of which one dies", &|| over_dying_links(&program, &lab.scratch));
    check("a receiver that is killed is reported", &|| to_the_dead(&program));
    Ok(())
}

/// A receiver in a thread: `send` gets its process ID and the address that it prints.
fn beside_receiver(
    program: &Path,
    links: &str,
    send: impl FnOnce(u32, SocketAddr) -> Result<()>,
) -> Result<Result<String>> {
    let (said, lines) = mpsc::channel();
    std::thread::scope(|scope| {
        // The shell prints the process ID of the program that replaces it.
        let script = "echo $$; exec \"$0\" receive \"$1\"";
        let mut command = bound("sh");
        command.args(["-c", script]).arg(program).arg(links);
        let receiver = scope.spawn(move || {
            let on_line = |line: &str| _ = said.send(line.to_owned());
            stream(&mut command, LIMIT, LIMIT, on_line)?.succeeded()
        });
        let line = || lines.recv_timeout(LIMIT).context("the receiver says nothing");
        let pid = line()?.parse()?;
        // A sender that comes before that is refused.
        let listening = line()?;
        let listening = listening.strip_prefix("listening").context("it does not listen")?;
        let address = match listening.strip_prefix(" at ") {
            Some(address) => address.parse()?,
            None => SocketAddr::from(([0, 0, 0, 0], 0)),
        };
        send(pid, address)?;
        receiver.join().map_err(|_| anyhow!("the receiver's thread has ended"))
    })
}

fn sender(program: &Path, links: &str, peers: &str, (len, count): (usize, usize)) -> Command {
    let mut command = bound(program);
    command.args(["send", links, peers, &len.to_string(), &count.to_string()]);
    command
}

fn expect(received: &str, count: usize) -> Result<()> {
    ensure!(received.contains(&format!("received {count} Transfers")), "the receiver says: {received}");
    Ok(())
}

fn over_udp(program: &Path, len: usize, count: usize) -> Result<()> {
    let received = beside_receiver(program, "udp:127.0.0.1:0", |_, address| {
        let mut command = sender(program, "udp:127.0.0.1:0", &address.to_string(), (len, count));
        run(&mut command, LIMIT)?.succeeded().map(drop)
    })?;
    expect(&received?, count)
}

fn beside_a_stranger(program: &Path) -> Result<()> {
    let received = beside_receiver(program, "udp:127.0.0.1:0", |_, address| {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stranger = scope.spawn(|| -> Result<()> {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                let mut packet = [0_u8; 1064];
                while !over.load(Ordering::Relaxed) {
                    for operation in 0..=255 {
                        // Any operation, any Key: the counter runs through all fields.
                        packet[0] = operation;
                        packet[1..40]
                            .iter_mut()
                            .rev()
                            .for_each(|byte| *byte = byte.wrapping_mul(5).wrapping_add(operation));
                        socket.send_to(&packet, address)?;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            });
            let mut command = sender(program, "udp:127.0.0.1:0", &address.to_string(), (3_000_000, 30));
            let sent = run(&mut command, LIMIT).and_then(|output| output.succeeded());
            over.store(true, Ordering::Relaxed);
            stranger.join().map_err(|_| anyhow!("the stranger has panicked"))??;
            sent.map(drop)
        })
    })?;
    expect(&received?, 30)
}

/// A list of links: the sockets of one end, and those that it sends to.
fn links(folder: &Path, sockets: &[(&str, &str)]) -> String {
    let link = |(own, peer): &(&str, &str)| format!("unix:{0}/{own};{0}/{peer}", folder.display());
    sockets.iter().map(link).collect::<Vec<_>>().join(",")
}

/// The MAC addresses of the receiver's links, as its program names them.
fn peers(program: &Path, links: &str) -> Result<String> {
    let mut command = bound(program);
    command.args(["addresses", links]);
    Ok(run(&mut command, LIMIT)?.succeeded()?.trim().to_owned())
}

fn over_frames(program: &Path, folder: &Path) -> Result<()> {
    let (receiving, sending) = (links(folder, &[("r0", "s0")]), links(folder, &[("s0", "r0")]));
    let peers = peers(program, &receiving)?;
    let received = beside_receiver(program, &receiving, |_, _| {
        run(&mut sender(program, &sending, &peers, (1_000_003, 20)), LIMIT)?.succeeded().map(drop)
    })?;
    expect(&received?, 20)
}

/// The frames that the relayed link carries before it dies: the Transfers use some 400 of it if it lives.
const FRAMES: usize = 150;

/// Forwards the frames of a link in both directions, until there were so many.
fn forward(folder: &Path, ends: &[UnixDatagram; 2], frames: usize) -> Result<()> {
    let targets = [folder.join("s1"), folder.join("r1")];
    let (mut frame, mut count, started) = ([0; 10_000], 0, Instant::now());
    while count < frames {
        ensure!(started.elapsed() < LIMIT, "only {count} frames used the link");
        for (end, target) in ends.iter().zip(&targets) {
            end.set_nonblocking(true)?;
            while let Ok(len) = end.recv(&mut frame) {
                // A frame that does not fit is lost.
                count += usize::from(end.send_to(&frame[..len], target).is_ok());
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn over_dying_links(program: &Path, folder: &Path) -> Result<()> {
    let receiving = links(folder, &[("r0", "s0"), ("r1", "x1"), ("r2", "s2")]);
    let sending = links(folder, &[("s0", "r0"), ("s1", "y1"), ("s2", "r2")]);
    let peers = peers(program, &receiving)?;
    let transfers = 60;
    // Both are there before a program sends: a link whose peer is missing is dead for it.
    let (at_receiver, at_sender) = (folder.join("x1"), folder.join("y1"));
    let ends = [UnixDatagram::bind(at_receiver)?, UnixDatagram::bind(at_sender)?];
    let received = std::thread::scope(|scope| {
        let link = scope.spawn(|| forward(folder, &ends, FRAMES));
        let received = beside_receiver(program, &receiving, |_, _| {
            run(&mut sender(program, &sending, &peers, (2_000_000, transfers)), LIMIT)?.succeeded().map(drop)
        });
        link.join().map_err(|_| anyhow!("the link has panicked"))?.context("the link that dies")?;
        received
    })?;
    expect(&received?, transfers)
}

fn to_the_dead(program: &Path) -> Result<()> {
    let received = beside_receiver(program, "udp:127.0.0.1:0", |pid, address| {
        let mut command = sender(program, "udp:127.0.0.1:0", &address.to_string(), (1_000_000, 1_000_000));
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || -> Result<()> {
                std::thread::sleep(Duration::from_secs(1));
                let pid = Pid::from_raw(i32::try_from(pid)?).context("a process")?;
                Ok(kill_process(pid, Signal::KILL)?)
            });
            let output = run(&mut command, SILENCE)?;
            killer.join().map_err(|_| anyhow!("the thread has panicked"))??;
            ensure!(!output.status.success(), "a killed receiver is no success: {}", output.text);
            ensure!(output.text.contains("does not answer") || output.text.contains("ended"), "{}", output.text);
            Ok(())
        })
    })?;
    ensure!(received.is_err(), "the receiver was killed");
    Ok(())
}
