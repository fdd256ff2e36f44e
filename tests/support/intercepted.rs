//! A store whose batches pass through a function of the test, which can delay, change or lose them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub use memlock_core::store::Replies;
use memlock_core::store::{
    Epoch, Guarantees, Node, Op, Pending, Recovery, Request, Route, Silence, Store,
};

/// A store that forwards everything to `inner`, except that `run` executes the batches. Its first
/// argument is `inner`.
pub fn intercepted(
    inner: Arc<dyn Store>,
    run: impl Fn(&dyn Store, Route, &[Op<'_>]) -> Replies + Send + Sync + 'static,
) -> Arc<dyn Store> {
    let guarantees = inner.guarantees();
    intercepted_as(guarantees, inner, run)
}

/// The same, with other promises than those of `inner`.
pub fn intercepted_as(
    guarantees: Guarantees,
    inner: Arc<dyn Store>,
    run: impl Fn(&dyn Store, Route, &[Op<'_>]) -> Replies + Send + Sync + 'static,
) -> Arc<dyn Store> {
    Arc::new(Intercepted { guarantees, inner, run })
}

struct Intercepted<F> {
    guarantees: Guarantees,
    inner: Arc<dyn Store>,
    run: F,
}

impl<F> fmt::Debug for Intercepted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intercepted").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The test's function runs when the replies are received.
impl<F> Store for Intercepted<F>
where
    F: Fn(&dyn Store, Route, &[Op<'_>]) -> Replies + Send + Sync,
{
    fn send<'a>(&'a self, request: Request<'a>) -> Pending<'a> {
        Pending::sent(move || (self.run)(&*self.inner, request.route, request.ops))
    }

    fn server_of(&self, route: Route) -> usize {
        self.inner.server_of(route)
    }

    fn silence(&self, route: Route) -> Option<Silence> {
        self.inner.silence(route)
    }

    fn disconnect(&self) {
        self.inner.disconnect();
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees
    }

    fn time(&self, route: Route) -> Option<Duration> {
        self.inner.time(route)
    }

    fn recovery(&self, route: Route) -> Option<Recovery> {
        self.inner.recovery(route)
    }

    fn recovers_for(&self, route: Route, life: Epoch) -> Duration {
        self.inner.recovers_for(route, life)
    }

    fn local_address(&self, route: Route) -> Option<IpAddr> {
        self.inner.local_address(route)
    }

    fn nodes(&self) -> Vec<Node> {
        self.inner.nodes()
    }
}
