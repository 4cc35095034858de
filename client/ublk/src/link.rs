//! The connection while the disk is served: it is made again when it was lost, and a change of the size of the volume
//! becomes one of the disk.

use crate::error::SessionError;
use crate::session::Session;
use crate::size::Size;
use crate::traffic::Traffic;
use lunar_reactor::end::End;
use lunar_reactor::{Reactor, log};
use lunar_ublk::wire::SECTOR;
use lunar_vhost_client::disk::Shape;
use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Pauses between attempts to connect: Lunar logs those that it refuses.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Attempts to connect. The operator is told why they fail, once for each reason.
#[derive(Debug)]
struct Attempts {
    words: String,
    pause: Duration,
}

impl Attempts {
    fn new() -> Self {
        Self { words: String::new(), pause: PAUSE }
    }

    /// There is no connection; returns the time until the next attempt.
    fn failed(&mut self, name: &str, path: &Path, why: &SessionError) -> Duration {
        let words = why.to_string();
        if self.words != words {
            log!(warning, "ublk {name}: {}: {words}", path.display());
            self.words = words;
        }
        let pause = self.pause;
        self.pause = PAUSE_MAX.min(pause * 2);
        pause
    }
}

/// Connects to Lunar, however long that takes.
pub async fn connected(reactor: &Reactor, name: &str, path: &Path) -> Session {
    let mut attempts = Attempts::new();
    loop {
        match Session::open(reactor, path).await {
            Ok(session) => return session,
            Err(why) => reactor.sleep(attempts.failed(name, path, &why)).await,
        }
    }
}

/// The connection of a disk.
pub struct Link {
    reactor: Reactor,
    name: String,
    path: PathBuf,
    traffic: Rc<Traffic>,
    size: Rc<Size>,
    /// Whether the kernel flushes; otherwise it expects every write on the medium.
    flushes: bool,
    shape: Cell<Shape>,
    /// The UUID of the volume.
    volume: [u8; 16],
    over: End,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({})", self.name)
    }
}

impl Link {
    /// The connection to this socket.
    #[must_use]
    pub fn new(
        (reactor, name, path): (&Reactor, &str, &Path),
        (traffic, size): (&Rc<Traffic>, &Rc<Size>),
        (shape, volume, flushes): (Shape, [u8; 16], bool),
    ) -> Rc<Self> {
        Rc::new(Self {
            reactor: reactor.clone(),
            name: name.to_owned(),
            path: path.to_owned(),
            traffic: traffic.clone(),
            size: size.clone(),
            flushes,
            shape: Cell::new(shape),
            volume,
            over: End::default(),
        })
    }

    /// Keeps the connection, which begins with this one, until [`Link::end`].
    pub async fn keep(&self, first: Session) {
        let (mut session, mut attempts) = (Some(first), Attempts::new());
        while !self.over.has_come() {
            let next = match session.take() {
                Some(session) => Ok(session),
                None => match self.over.unless(self.again()).await {
                    Some(again) => again,
                    None => return,
                },
            };
            let why = match next {
                Ok(session) => {
                    attempts = Attempts::new();
                    self.traffic.go_up();
                    let why = self.over.unless(self.live(session)).await;
                    let Some(why) = why else { return };
                    why
                }
                Err(why) => why,
            };
            self.traffic.go_down();
            let pause = attempts.failed(&self.name, &self.path, &why);
            self.over.unless(self.reactor.sleep(pause)).await;
        }
    }

    /// The disk ends.
    pub fn end(&self) {
        self.over.come();
    }

    /// Connects once more, to the same volume.
    async fn again(&self) -> Result<Session, SessionError> {
        let session = Session::open(&self.reactor, &self.path).await?;
        session.accept(self.flushes).await?;
        let (shape, old) = (session.shape().await?, self.shape.get());
        if shape.limits.block_size != old.limits.block_size {
            return Err(SessionError::Changed("has other blocks"));
        }
        if shape.limits.capacity < old.limits.capacity {
            return Err(SessionError::Changed("is smaller"));
        }
        if shape.limits.read_only && !old.limits.read_only {
            return Err(SessionError::Changed("is read-only"));
        }
        if shape.pieces.0 < old.pieces.0 || shape.pieces.1 < old.pieces.1 {
            return Err(SessionError::Changed("takes shorter requests"));
        }
        if self.traffic.begin(&session).await? != self.volume {
            return Err(SessionError::OtherVolume);
        }
        log!("ublk {}: connected again; {} requests are repeated", self.name, self.traffic.unanswered());
        self.take(&shape);
        Ok(session)
    }

    /// The volume is as this shape says from now on.
    fn take(&self, shape: &Shape) {
        self.shape.set(*shape);
        self.size.want(shape.limits.capacity / SECTOR);
    }

    /// Stays in a connection until it is lost; returns why.
    async fn live(&self, session: Session) -> SessionError {
        let (session, over) = (Rc::new(session), Rc::new(End::default()));
        let (asking, ended) = (session.clone(), over.clone());
        self.reactor.spawn(async move {
            // The replies come to the other task.
            while let Some(Ok(())) = ended.unless(asking.changed()).await {
                if asking.ask_shape().await.is_err() {
                    break;
                }
            }
        });
        let ended = self.traffic.unless_broken(self.listen(&session)).await;
        over.come();
        session.end();
        ended.unwrap_or_else(|why| why)
    }

    async fn listen(&self, session: &Session) -> SessionError {
        loop {
            let shape = match session.reply().await {
                Ok((head, payload)) => session.shape_of(&head, &payload),
                Err(why) => return why,
            };
            match shape {
                Ok(Some(shape)) if shape.limits.block_size == self.shape.get().limits.block_size => {
                    self.take(&shape);
                }
                Ok(Some(_)) => return SessionError::Changed("has other blocks"),
                Ok(None) => {}
                Err(why) => return why,
            }
        }
    }
}
