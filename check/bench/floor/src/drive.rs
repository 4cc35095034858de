//! The bare client: keeps requests outstanding on its connections and measures.

use crate::options::{HEADER, Sizes};
use anyhow::{Context, Result};
use clap::Args;
use lunar_load::cost::{Cost, Snapshot};
use lunar_load::histogram::Histogram;
use lunar_load::report::Latency;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The length of the buffers for receives and sends, in bytes.
const BUFFER: usize = 512 << 10;
/// The most connections that are served per wake-up.
const EVENTS: usize = 64;
/// The longest wait for events between two reads of the clock.
const WAIT_MAX: Duration = Duration::from_millis(100);

#[derive(Args, Clone, Debug)]
pub(crate) struct Drive {
    /// Address of `floor serve`
    #[arg(default_value = "127.0.0.1:3299")]
    address: SocketAddr,
    #[command(flatten)]
    sizes: Sizes,
    /// Requests that each connection keeps outstanding
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Connections
    #[arg(long, default_value_t = 1)]
    sessions: usize,
    /// Measured time, in seconds
    #[arg(long, default_value_t = 5.0)]
    time: f64,
    /// Load before the measurement, in seconds
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// CPU to run on
    #[arg(long)]
    pub(crate) cpu: Option<usize>,
    /// Poll the sockets instead of sleeping
    #[arg(long)]
    spin: bool,
    /// Process ID of the server, to report its CPU time
    #[arg(long)]
    pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The results.
#[derive(Serialize)]
struct Report {
    seconds: f64,
    iops: f64,
    latency_us: Latency,
    initiator_cpu_us_per_io: f64,
    target_cpu_us_per_io: Option<f64>,
    commands_per_receive: f64,
    cost: Cost,
}

struct Connection {
    socket: TcpStream,
    /// Received bytes of incomplete replies.
    received: usize,
    /// Bytes of requests to send.
    pending: usize,
    /// The time of each send, and the number of its requests that are not answered yet.
    sent: VecDeque<(Instant, usize)>,
    full: bool,
}

struct Client {
    request: usize,
    reply: usize,
    spin: bool,
    connections: Vec<Connection>,
    epoll: rustix::fd::OwnedFd,
    buffer: Vec<u8>,
    requests: Vec<u8>,
    latencies: Histogram,
    receives: u64,
}

pub(crate) fn run(options: &Drive) -> Result<()> {
    let mut client = Client::connect(options)?;
    for at in 0..client.connections.len() {
        client.start(at, options.depth)?;
    }
    let phase = |client: &mut Client, seconds: f64| -> Result<()> {
        let deadline = Instant::now() + Duration::try_from_secs_f64(seconds)?;
        while Instant::now() < deadline {
            client.poll_once()?;
        }
        Ok(())
    };
    phase(&mut client, options.warmup)?;
    let (before, start) = (Snapshot::take(options.pid, None)?, Instant::now());
    (client.latencies, client.receives) = (Histogram::new(), 0);
    phase(&mut client, options.time)?;
    let (cost, seconds) = (Snapshot::take(options.pid, None)?.since(&before), start.elapsed().as_secs_f64());
    let count = client.latencies.count() as f64;
    let report = Report {
        seconds,
        iops: count / seconds,
        latency_us: (&client.latencies).into(),
        initiator_cpu_us_per_io: cost.initiator_cpu_seconds * 1e6 / count,
        target_cpu_us_per_io: cost.target_cpu_seconds.map(|cpu| cpu * 1e6 / count),
        commands_per_receive: count / client.receives as f64,
        cost,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    println!(
        "messages per second {:.0}   MB/s {:.1}",
        report.iops,
        report.iops * options.sizes.reply.max(options.sizes.request) as f64 / 1e6
    );
    println!("latency us: {}", report.latency_us);
    println!("CPU us per message: client {:.3}", report.initiator_cpu_us_per_io);
    if let Some(cpu) = report.target_cpu_us_per_io {
        println!("                    server {cpu:.3}");
    }
    Ok(())
}

impl Client {
    fn connect(options: &Drive) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let connections = (0..options.sessions as u64)
            .map(|number| {
                let socket = TcpStream::connect(options.address)
                    .with_context(|| format!("connecting to {}", options.address))?;
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                epoll::add(&epoll, &socket, EventData::new_u64(number), EventFlags::IN)?;
                Ok(Connection { socket, received: 0, pending: 0, sent: VecDeque::new(), full: false })
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            request: HEADER + options.sizes.request,
            reply: HEADER + options.sizes.reply,
            spin: options.spin,
            connections,
            epoll,
            buffer: vec![0; BUFFER],
            requests: vec![0xa5; BUFFER],
            latencies: Histogram::new(),
            receives: 0,
        })
    }

    fn poll_once(&mut self) -> Result<()> {
        if self.spin {
            return (0..self.connections.len()).try_for_each(|at| self.serve(at));
        }
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let count = match epoll::wait(&self.epoll, &mut events, Some(&Timespec::try_from(WAIT_MAX)?)) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        events[..count].iter().try_for_each(|event| self.serve(usize::try_from(event.data.u64())?))
    }

    fn serve(&mut self, at: usize) -> Result<()> {
        let connection = &mut self.connections[at];
        let count = match connection.socket.read(&mut self.buffer) {
            Ok(0) => anyhow::bail!("the server closed the connection"),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        let mut replies = 0;
        if count > 0 {
            let now = Instant::now();
            self.receives += 1;
            connection.received += count;
            replies = connection.received / self.reply;
            connection.received %= self.reply;
            let mut left = replies;
            while left > 0 {
                let (sent, requests) =
                    connection.sent.front_mut().context("the server sent more replies than requests")?;
                let part = left.min(*requests);
                let latency = u64::try_from(now.saturating_duration_since(*sent).as_nanos())?;
                (0..part).for_each(|_| self.latencies.record(latency));
                (left, *requests) = (left - part, *requests - part);
                if *requests == 0 {
                    connection.sent.pop_front();
                }
            }
        }
        self.start(at, replies)
    }

    /// Queues so many more requests and sends as much as possible.
    fn start(&mut self, at: usize, requests: usize) -> Result<()> {
        let connection = &mut self.connections[at];
        if requests > 0 {
            connection.sent.push_back((Instant::now(), requests));
            connection.pending += requests * self.request;
        }
        let mut full = false;
        while connection.pending > 0 && !full {
            match connection.socket.write(&self.requests[..connection.pending.min(BUFFER)]) {
                Ok(sent) => connection.pending -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => full = true,
                Err(error) => return Err(error.into()),
            }
        }
        if full != connection.full {
            connection.full = full;
            let interest = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(at as u64), interest)?;
        }
        Ok(())
    }
}
