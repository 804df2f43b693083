//! The floor of proxying: a hyper reverse proxy with a keep-alive pool that copies bodies through, and nothing else.
//! Whatever a gateway adds, it adds to this.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

use http::{
    Request, Response, StatusCode, Uri,
    header::HOST,
    uri::{Authority, Scheme},
};
use http_body_util::{Either, Empty};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo, TokioTimer},
};

type Pool = Client<HttpConnector, Incoming>;
type Body = Either<Incoming, Empty<Bytes>>;

/// Serves on `listener` until the process ends.
pub fn run(listener: TcpListener, upstream: SocketAddr, threads: usize) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads.max(1)).enable_all().build()?;
    runtime.block_on(serve(listener, upstream))
}

/// The same, on the runtime of the caller.
pub async fn serve(listener: TcpListener, upstream: SocketAddr) -> io::Result<()> {
    let authority: Authority = upstream.to_string().parse().map_err(io::Error::other)?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let pool: Pool = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (pool, authority) = (pool.clone(), authority.clone());
        let service = service_fn(move |request| forward(pool.clone(), authority.clone(), request));
        tokio::spawn(async move {
            let served = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
            // An error here is a peer that went away.
            drop(served.await);
        });
    }
}

async fn forward(
    pool: Pool,
    authority: Authority,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, http::Error> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    *request.uri_mut() = Uri::from_parts(parts)?;
    request.headers_mut().remove(HOST);
    match pool.request(request).await {
        Ok(response) => Ok(response.map(Either::Left)),
        Err(_) => Response::builder().status(StatusCode::BAD_GATEWAY).body(Either::Right(Empty::new())),
    }
}
