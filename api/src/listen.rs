//! The API's thread: a small runtime besides the cores that accepts connections and speaks HTTP/1.1, with TLS where a
//! listener has a certificate.

use crate::browser::Encrypted;
use crate::certificate::Expiry;
use crate::rights::Peer;
use crate::server::{State, router};
use crate::write_deadline::WriteDeadline;
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lunar_control::files;
use lunar_core::pace::host;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, version};
use tower_service::Service;

/// The most connections over the Unix socket: shells, scripts and pages of the operators of one host.
pub const LOCAL_CONNECTIONS_MAX: usize = 128;
/// The most connections over TCP. They are counted separately, so that network clients cannot block the Unix socket.
pub const REMOTE_CONNECTIONS_MAX: usize = 128;
/// The most connections from one host (of IPv6: one /64 network); a browser opens six.
pub const SOURCE_CONNECTIONS_MAX: usize = 16;
/// The longest time for receiving the head of a request, and for an idle connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time for a TLS handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest time in which a peer must take a part of its answer; a page over a slow connection takes seconds.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest head of a request, in bytes: the longest path and token, and the fields that browsers add.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The most fields in the head of a request; browsers send about twenty.
const FIELDS_MAX: usize = 64;
/// The pause of a listener after `accept` failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// On this host; the kernel identifies the peer.
    Local(std::os::unix::net::UnixListener),
    /// On TCP, with TLS if it has a certificate.
    Remote(std::net::TcpListener, Option<Tls>),
}

/// The longest file of a certificate chain or a key: a hundred certificates.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// The TLS configuration of a listener, and the certificate of its host.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificate: Encrypted,
    /// The end of the certificate.
    pub expiry: Option<Expiry>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Why a certificate and its key cannot be used.
#[derive(Debug)]
pub enum TlsError {
    /// A file cannot be read.
    File(PathBuf, io::Error),
    /// A file is not PEM with a certificate, or a key.
    Pem(PathBuf, pem::Error),
    /// The certificate and the key cannot be used together.
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why.
        why: rustls::Error,
    },
    /// The cryptography does not support these versions of TLS.
    Versions(rustls::Error),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Pem(path, why) => write!(f, "{}: {why}", path.display()),
            Self::Pair { certificate, key, why } => {
                write!(f, "{} and {}: {why}", certificate.display(), key.display())
            }
            Self::Versions(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for TlsError {}

impl Tls {
    /// Reads a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read =
            |path: &Path| files::read_secret(path, PEM_BYTES_MAX).map_err(|why| TlsError::File(path.to_owned(), why));
        let malformed = |path: &Path, why| TlsError::Pem(path.to_owned(), why);
        let chain = read(certificate)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .map_err(|why| malformed(certificate, why))?;
        let own = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|why| malformed(key, why))?;
        let expiry = chain.first().and_then(|first| Expiry::of(first));
        let first = chain.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(TlsError::Versions)?
            .with_no_client_auth()
            .with_single_cert(chain, own);
        let unfit = |why| TlsError::Pair { certificate: certificate.to_owned(), key: key.to_owned(), why };
        let mut config = config.map_err(unfit)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), certificate: Encrypted(Arc::new(first)), expiry })
    }
}

/// A command for the thread.
enum Command {
    Open(String, Listener),
    Close(String),
}

/// The API's thread. When this is dropped, its sockets are closed and the thread ends.
#[derive(Debug)]
pub struct Thread {
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts the thread without any socket.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(state: &Arc<State>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (commands, receiver) = mpsc::unbounded_channel();
        let router = router(state);
        let thread = std::thread::Builder::new().name("api".into());
        let thread = thread.spawn(move || {
            runtime.block_on(run_commands(receiver, Shared::new(router)));
            // Work that is still in progress does not delay the end of the thread.
            runtime.shutdown_background();
        })?;
        Ok(Self { commands: Some(commands), thread: Some(thread) })
    }

    /// Starts accepting at a socket. It replaces a socket of the same name.
    pub fn open(&self, name: &str, listener: Listener) {
        self.send_command(Command::Open(name.to_owned(), listener));
    }

    /// Stops accepting at the socket of this name. Its connections stay open.
    pub fn close(&self, name: &str) {
        self.send_command(Command::Close(name.to_owned()));
    }

    fn send_command(&self, send_command: Command) {
        // The thread runs until this is dropped.
        let _ = self.commands.as_ref().map(|commands| commands.send(send_command));
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.commands = None;
        // A panic of the thread was reported when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open(name, _) | Self::Close(name) => name,
        })
    }
}

/// The number of connections from each host: an IPv6 host has a whole network of addresses.
type Sources = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The state that all listeners share.
#[derive(Clone)]
struct Shared {
    router: Router,
    local: Arc<Semaphore>,
    remote: Arc<Semaphore>,
    sources: Sources,
}

impl Shared {
    fn new(router: Router) -> Self {
        let (local, remote) =
            (Arc::new(Semaphore::new(LOCAL_CONNECTIONS_MAX)), Arc::new(Semaphore::new(REMOTE_CONNECTIONS_MAX)));
        Self { router, local, remote, sources: Arc::default() }
    }
}

async fn run_commands(mut commands: mpsc::UnboundedReceiver<Command>, shared: Shared) {
    let mut open: BTreeMap<String, AbortHandle> = BTreeMap::new();
    while let Some(send_command) = commands.recv().await {
        let (name, task) = match send_command {
            Command::Open(name, Listener::Local(listener)) => {
                let accept = accept_local(listener, shared.clone());
                (name, Some(tokio::spawn(accept).abort_handle()))
            }
            Command::Open(name, Listener::Remote(listener, tls)) => {
                let accept = accept_remote(listener, tls, shared.clone());
                (name, Some(tokio::spawn(accept).abort_handle()))
            }
            Command::Close(name) => (name, None),
        };
        let before = match task {
            Some(task) => open.insert(name, task),
            None => open.remove(&name),
        };
        before.into_iter().for_each(|task| task.abort());
    }
}

async fn accept_local(listener: std::os::unix::net::UnixListener, shared: Shared) {
    // The socket was created by `service`; setting it to non-blocking mode cannot fail for a valid socket.
    let Ok(listener) = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener)) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Peers that cannot be identified and connections beyond the limit are closed.
        let (Ok(peer), Ok(permit)) = (stream.peer_cred(), shared.local.clone().try_acquire_owned()) else { continue };
        let peer = Peer::Local { user: peer.uid(), group: peer.gid() };
        let slot = ConnectionSlot { _permit: permit, source: None };
        tokio::spawn(serve(stream, (peer, None), shared.router.clone(), slot));
    }
}

async fn accept_remote(listener: std::net::TcpListener, tls: Option<Tls>, shared: Shared) {
    let Ok(listener) = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) else { return };
    let tls = tls.map(|tls| (TlsAcceptor::from(tls.config), tls.certificate));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(slot) = ConnectionSlot::remote(&shared, from) else { continue };
        let (router, tls, peer) = (shared.router.clone(), tls.clone(), Peer::Remote(from));
        // Send short replies without delay.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            match tls {
                None => serve(stream, (peer, None), router, slot).await,
                Some((tls, encrypted)) => {
                    if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)).await {
                        serve(stream, (peer, Some(encrypted)), router, slot).await;
                    }
                }
            }
        });
    }
}

/// The counters that a connection occupies.
struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    source: Option<(IpAddr, Sources)>,
}

impl ConnectionSlot {
    fn remote(shared: &Shared, from: SocketAddr) -> Option<Self> {
        let permit = shared.remote.clone().try_acquire_owned().ok()?;
        let ip = host(from.ip());
        let mut sources = shared.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let count = sources.entry(ip).or_default();
        if *count >= SOURCE_CONNECTIONS_MAX {
            return None;
        }
        *count += 1;
        Some(Self { _permit: permit, source: Some((ip, shared.sources.clone())) })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if let Some((ip, sources)) = &self.source {
            let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = sources.get_mut(ip) {
                *count -= 1;
                if *count == 0 {
                    sources.remove(ip);
                }
            }
        }
    }
}

/// Serves the requests of a connection until it ends: of a peer, and of a listener with TLS if there is a certificate.
pub async fn serve_requests<S>(stream: S, (peer, encrypted): (Peer, Option<Encrypted>), router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(peer);
        if let Some(encrypted) = &encrypted {
            request.extensions_mut().insert(encrypted.clone());
        }
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(WriteDeadline::new(stream, WRITE_TIME_MAX)), service);
    // An error of the connection concerns its peer only.
    let _ = connection.await;
}

async fn serve<S>(stream: S, peer: (Peer, Option<Encrypted>), router: Router, slot: ConnectionSlot)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    serve_requests(stream, peer, router).await;
    drop(slot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn the_addresses_of_an_ipv6_host_share_its_connections() {
        let shared = Shared::new(Router::new());
        let from = |network: u16, host: usize| {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host as u16);
            ConnectionSlot::remote(&shared, SocketAddr::new(address.into(), 1024))
        };
        let slots: Vec<_> = (0..=SOURCE_CONNECTIONS_MAX).map(|host| from(1, host)).collect();
        let (last, first) = slots.split_last().expect("there are some");
        assert!(first.iter().all(Option::is_some) && last.is_none());
        assert!(from(2, 0).is_some(), "another network is another host");
        drop(slots);
        assert!(from(1, 0).is_some());
    }
}
