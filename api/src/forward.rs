//! Forwards browsers of this host to the Unix socket of a service, for operators who have no token. The forwarded
//! requests are marked, so that the service requires a login from them: any process of this host can connect to the
//! forwarder.

use crate::browser::FORWARDED;
use axum::http::header::AUTHORIZATION;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1 as client;
use hyper::header::HeaderValue;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// The most connections: a few browsers of one operator, each with six. It is less than the socket accepts, so that
/// commands still work.
pub const CONNECTIONS_MAX: usize = 64;
/// The longest time for receiving the head of a request, and for an idle connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after `accept` failed for lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A forwarder that listens and does not forward yet.
#[derive(Debug)]
pub struct Forwarder {
    listener: TcpListener,
    socket: PathBuf,
}

impl Forwarder {
    /// Listens at a port of the loopback address; at a free one if it is 0.
    ///
    /// # Errors
    /// If another process uses the port.
    pub fn bind(port: u16, socket: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, socket: socket.to_owned() })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// If the system does not know it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Forwards until the process ends.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(self) -> io::Result<Infallible> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let (room, socket) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Arc::new(self.socket));
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                // Connections beyond the limit are closed.
                let Ok(permit) = room.clone().try_acquire_owned() else { continue };
                let socket = socket.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(socket.clone(), request));
                    let connection = server::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEAD_TIME_MAX)
                        .serve_connection(TokioIo::new(stream), service);
                    // An error of the connection concerns its browser only.
                    let _ = connection.await;
                    drop(permit);
                });
            }
        })
    }
}

type Body = BoxBody<Bytes, hyper::Error>;

/// The answer of the service, or one that says that there is none.
async fn answer(socket: Arc<PathBuf>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    Ok(forward(&socket, request).await.unwrap_or_else(|| {
        let words = Full::new(Bytes::from_static(b"Lunar does not answer."));
        let mut response = Response::new(words.map_err(|never| match never {}).boxed());
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    }))
}

async fn forward(socket: &Path, mut request: Request<Incoming>) -> Option<Response<Body>> {
    request.headers_mut().insert(FORWARDED, HeaderValue::from_static("1"));
    // Tokens are for the network.
    request.headers_mut().remove(AUTHORIZATION);
    let stream = UnixStream::connect(socket).await.ok()?;
    let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.ok()?;
    // This task also receives the body of the response.
    tokio::spawn(connection);
    Some(sender.send_request(request).await.ok()?.map(BodyExt::boxed))
}
