//! The program: connects to the cluster, locks the image, and serves it.

#![allow(missing_docs, reason = "a program has no public interface")]

use clap::Parser;
use lunar_handler::serve::ServeError;
use lunar_rbd::args::Args;
use lunar_rbd::claim::{self, LockError, Process};
use lunar_rbd::library::Libraries;
use lunar_rbd::library::cluster::Cluster;
use lunar_rbd::library::image::Image;
use lunar_rbd::make;
use lunar_rbd::serve::{End, Serving};
use lunar_reactor::log;
use lunar_reactor::log::{Format, Severity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::error::Error;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The time between two attempts to connect to Lunar, or to lock an image that another client has.
const PAUSE: Duration = Duration::from_millis(500);
/// The most bytes of a passphrase: that of LUKS.
const PASSPHRASE_MAX: usize = 512;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.is_of_lunar() {
        // Lunar takes the lines with their severities.
        log::set_up(Severity::Info, Format::Journal);
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            log!(error, "{}: {why}", args.image);
            ExitCode::FAILURE
        }
    }
}

/// Waits; returns whether the program is to end.
fn pause(args: &Args, stop: &UnixStream) -> bool {
    let time = Timespec::try_from(PAUSE).ok();
    let input = std::io::stdin();
    let mut sources = vec![PollFd::new(stop, PollFlags::IN)];
    if args.is_of_lunar() {
        // Before it has said HELLO, Lunar sends nothing but a refusal, and closes the connection.
        sources.push(PollFd::new(&input, PollFlags::IN));
    }
    poll(&mut sources, time.as_ref()).is_ok_and(|count| count > 0)
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (stop, signalled) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        if args.is_of_lunar() {
            // systemd signals all processes of a service at its end, and Lunar has commands left then. The program ends
            // with its connection.
            signal_hook::flag::register(signal, Arc::default())?;
        } else {
            signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
        }
    }
    if args.is_of_lunar() {
        // It also ends while it waits for the cluster. The successor takes its lock.
        set_parent_process_death_signal(Some(Signal::KILL))?;
    }
    let name = &args.image;
    let cluster = Rc::new(Cluster::connect(&Rc::new(Libraries::load()?), &args.access())?);
    let pool = Rc::new(cluster.pool(&name.pool, &name.namespace)?);
    if let Some(order) = args.order() {
        return Ok(make::run(std::io::stdin().as_fd(), &cluster, &pool, args, &order)?);
    }
    let is_read_only = args.read_only || name.snapshot.is_some();
    let image = Image::open(&pool, &name.image, name.snapshot.as_deref(), is_read_only)
        .map_err(|why| format!("the image cannot be opened: {why}"))?;
    if let Some(option) = image.unsafe_option()? {
        return Err(format!(
            "the image or its pool has {option}, with which acknowledged writes could be lost: remove it \
                            (`rbd config image remove`, `rbd config pool remove`)"
        )
        .into());
    }
    if !is_read_only {
        if args.is_of_lunar() && args.stand_by {
            // Lunar learns the size while another client has the image.
            decrypt(args, &image)?;
        }
        if !lock(args, &image, &stop)? {
            return Ok(());
        }
    }
    if is_read_only || !(args.is_of_lunar() && args.stand_by) {
        decrypt(args, &image)?;
    }
    let served = match args.is_of_lunar() {
        true => serve_once(args, &image, is_read_only, &stop),
        false => serve(args, &image, is_read_only, &stop),
    };
    if !is_read_only && !matches!(served, Ok(End::Fenced)) {
        claim::release(&image).map_err(|why| format!("the lock cannot be given back: {why}"))?;
    }
    match served? {
        End::Fenced => Err("the connection to the cluster has to be made anew".into()),
        End::Closed | End::Asked | End::Resized => Ok(()),
    }
}

/// Decrypts the image from now on, if it is encrypted.
fn decrypt(args: &Args, image: &Image) -> Result<(), Box<dyn Error>> {
    let (Some(format), Some(file)) = (args.encryption, &args.passphrase_file) else { return Ok(()) };
    let passphrase = std::fs::read(file).map_err(|why| format!("{} cannot be read: {why}", file.display()))?;
    let passphrase = passphrase.strip_suffix(b"\n").unwrap_or(&passphrase);
    if passphrase.len() > PASSPHRASE_MAX {
        return Err(format!("{} is longer than a passphrase ({PASSPHRASE_MAX} bytes)", file.display()).into());
    }
    Ok(image.load_encryption(format, passphrase).map_err(|why| format!("the image cannot be decrypted: {why}"))?)
}

/// The size and the identity of the image.
fn described(args: &Args, image: &Image) -> Result<(u64, String), Box<dyn Error>> {
    let size = image.size().map_err(|why| format!("the size of the image cannot be read: {why}"))?;
    let identity = image.identity(args.image.snapshot.as_deref());
    let identity = identity.map_err(|why| format!("the identity of the image cannot be read: {why}"))?;
    Ok((size, identity))
}

/// Locks the image; returns whether it is locked, or the program is to end.
fn lock(args: &Args, image: &Image, stop: &UnixStream) -> Result<bool, Box<dyn Error>> {
    let own = Process::own()?;
    let mut has_said = false;
    loop {
        match claim::lock(image, &own) {
            Ok(()) => return Ok(true),
            Err(why @ LockError::InUse(_)) if args.stand_by => {
                if !std::mem::replace(&mut has_said, true) {
                    log!("{}: standing by: {why}", args.image);
                    if args.is_of_lunar() {
                        let (size, identity) = described(args, image)?;
                        Serving::stand_by(std::io::stdin().as_fd(), image, (size, &identity))?;
                    }
                }
            }
            Err(why) => return Err(why.into()),
        }
        if pause(args, stop) {
            return Ok(false);
        }
    }
}

/// Serves the image on the connection that Lunar has made.
fn serve_once(args: &Args, image: &Image, is_read_only: bool, stop: &UnixStream) -> Result<End, Box<dyn Error>> {
    let connection = std::io::stdin().as_fd().try_clone_to_owned()?;
    let (size, identity) = described(args, image)?;
    Ok(Serving::over(connection, image, (size, &identity), is_read_only)?.run(stop.as_fd())?)
}

/// Serves the image on one connection after the other.
fn serve(args: &Args, image: &Image, is_read_only: bool, stop: &UnixStream) -> Result<End, Box<dyn Error>> {
    let mut has_said = false;
    loop {
        // Commands of the connection before must have ended: Lunar sends them again.
        image.drain();
        let size = match image.size() {
            Err(why) if why.is_fenced() => return Ok(End::Fenced),
            other => other.map_err(|why| format!("the size of the image cannot be read: {why}"))?,
        };
        let ended = Serving::connect(&args.socket, image, size, is_read_only).and_then(|mut serving| {
            has_said = false;
            serving.run(stop.as_fd())
        });
        match ended {
            Ok(End::Closed) => {}
            Ok(end) => return Ok(end),
            // Lunar is not there, or not yet.
            Err(ServeError::Io(why)) => {
                if !std::mem::replace(&mut has_said, true) {
                    log!("waiting for Lunar at {}: {why}", args.socket.display());
                }
            }
            Err(why) => return Err(why.into()),
        }
        if pause(args, stop) {
            return Ok(End::Asked);
        }
    }
}
