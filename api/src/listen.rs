//! The API's thread: a small runtime of its own beside the cores, which accepts at sockets, speaks HTTP/1.1 over them,
//! and over TLS where there is a certificate.

use crate::rights::Peer;
use crate::server::{State, router};
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
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
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, version};
use tower_service::Service;

/// Connections from this machine at once: shells, scripts and pages of one machine's operators.
pub const LOCAL_MAX: usize = 128;
/// Connections over TCP at once. They have a number of their own, so that no stranger keeps the operator out.
pub const REMOTE_MAX: usize = 128;
/// Connections from one address at once: a browser takes six.
pub const SOURCE_MAX: usize = 16;
/// How long the head of a request may take to come, and how long a connection may be idle.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a TLS handshake may take.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of the head of a request: the longest name in its path, the longest token, and what browsers add.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Fields in the head of a request: browsers send about twenty.
const FIELDS_MAX: usize = 64;
/// How long a listener rests when the system has no room for another connection.
const NO_ROOM_REST: Duration = Duration::from_millis(100);

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// On this machine; the kernel says who comes.
    Local(std::os::unix::net::UnixListener),
    /// On the network.
    Remote(std::net::TcpListener, Option<Tls>),
}

/// What a listener needs for TLS.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// From a certificate chain and its key, both in PEM.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let of = |path: &Path, why: &dyn fmt::Display| format!("{}: {why}", path.display());
        let chain = CertificateDer::pem_file_iter(certificate).map_err(|why| of(certificate, &why))?;
        let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|why| of(certificate, &why))?;
        let own = PrivateKeyDer::from_pem_file(key).map_err(|why| of(key, &why))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(|why| why.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, own);
        let mut config = config.map_err(|why| format!("{} and {}: {why}", certificate.display(), key.display()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(Arc::new(config)))
    }
}

/// What the thread is told.
enum Order {
    Open(String, Listener),
    Close(String),
}

/// The thread; when it drops, all its sockets are closed and it ends.
#[derive(Debug)]
pub struct Thread {
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts it, without any socket.
    ///
    /// # Errors
    /// When the system has no room for a thread.
    pub fn start(state: &Arc<State>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, incoming) = mpsc::unbounded_channel();
        let router = router(state);
        let thread = std::thread::Builder::new().name("api".into());
        let thread = thread.spawn(move || {
            runtime.block_on(obey(incoming, Shared::new(router)));
            // Who waits for what takes long keeps nobody from stopping.
            runtime.shutdown_background();
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Listens at a socket, under a name; what listened under this name before does not any more.
    pub fn open(&self, name: &str, listener: Listener) {
        self.order(Order::Open(name.to_owned(), listener));
    }

    /// Closes the socket of this name. Connections that came in by it go on.
    pub fn close(&self, name: &str) {
        self.order(Order::Close(name.to_owned()));
    }

    fn order(&self, order: Order) {
        // The thread ends when this drops, not before.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.orders = None;
        // If it panicked it said so.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open(name, _) | Self::Close(name) => name,
        })
    }
}

/// How many connections there are from each address.
type Sources = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// What all listeners of the thread share.
#[derive(Clone)]
struct Shared {
    router: Router,
    local: Arc<Semaphore>,
    remote: Arc<Semaphore>,
    sources: Sources,
}

impl Shared {
    fn new(router: Router) -> Self {
        let (local, remote) = (Arc::new(Semaphore::new(LOCAL_MAX)), Arc::new(Semaphore::new(REMOTE_MAX)));
        Self { router, local, remote, sources: Arc::default() }
    }
}

async fn obey(mut orders: mpsc::UnboundedReceiver<Order>, shared: Shared) {
    let mut open: BTreeMap<String, AbortHandle> = BTreeMap::new();
    while let Some(order) = orders.recv().await {
        let (name, task) = match order {
            Order::Open(name, Listener::Local(listener)) => {
                let accept = accept_local(listener, shared.clone());
                (name, Some(tokio::spawn(accept).abort_handle()))
            }
            Order::Open(name, Listener::Remote(listener, tls)) => {
                let accept = accept_remote(listener, tls, shared.clone());
                (name, Some(tokio::spawn(accept).abort_handle()))
            }
            Order::Close(name) => (name, None),
        };
        let before = match task {
            Some(task) => open.insert(name, task),
            None => open.remove(&name),
        };
        before.into_iter().for_each(|task| task.abort());
    }
}

async fn accept_local(listener: std::os::unix::net::UnixListener, shared: Shared) {
    // It is set up by who made it; the runtime takes all of these.
    let Ok(listener) = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener)) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(NO_ROOM_REST).await;
            continue;
        };
        // Who cannot be known is not let in; who is one too many finds the connection closed.
        let (Ok(peer), Ok(permit)) = (stream.peer_cred(), shared.local.clone().try_acquire_owned()) else { continue };
        let peer = Peer::Local { user: peer.uid(), group: peer.gid() };
        tokio::spawn(serve(stream, peer, shared.router.clone(), Held { _permit: permit, source: None }));
    }
}

async fn accept_remote(listener: std::net::TcpListener, tls: Option<Tls>, shared: Shared) {
    let Ok(listener) = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)) else { return };
    let tls = tls.map(|Tls(config)| TlsAcceptor::from(config));
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(NO_ROOM_REST).await;
            continue;
        };
        let Some(held) = Held::remote(&shared, from) else { continue };
        let (router, tls, peer) = (shared.router.clone(), tls.clone(), Peer::Remote(from));
        // Small answers leave at once.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            match tls {
                None => serve(stream, peer, router, held).await,
                Some(tls) => {
                    if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME_MAX, tls.accept(stream)).await {
                        serve(stream, peer, router, held).await;
                    }
                }
            }
        });
    }
}

/// What a connection counts as.
struct Held {
    _permit: OwnedSemaphorePermit,
    source: Option<(IpAddr, Sources)>,
}

impl Held {
    fn remote(shared: &Shared, from: SocketAddr) -> Option<Self> {
        let permit = shared.remote.clone().try_acquire_owned().ok()?;
        let ip = from.ip().to_canonical();
        let mut sources = shared.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let count = sources.entry(ip).or_default();
        if *count >= SOURCE_MAX {
            return None;
        }
        *count += 1;
        Some(Self { _permit: permit, source: Some((ip, shared.sources.clone())) })
    }
}

impl Drop for Held {
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

/// Answers requests on a connection until it ends.
pub async fn serve_requests<S>(stream: S, peer: Peer, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(peer);
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A connection that breaks is its peer's affair.
    let _ = connection.await;
}

async fn serve<S>(stream: S, peer: Peer, router: Router, held: Held)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    serve_requests(stream, peer, router).await;
    drop(held);
}
