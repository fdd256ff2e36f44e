//! The two phases of a request: sending it, and receiving the replies.

use std::fmt;

use super::{Failure, Op, Reply, Route};

/// The replies to a batch, one for each operation.
pub type Replies = std::result::Result<Vec<Reply>, Failure>;

/// A batch for the server that owns a route.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Which server runs the operations.
    pub route: Route,
    /// They are run in this order, each atomic on its own.
    pub ops: &'a [Op<'a>],
    /// How long the server may take.
    pub limit: TimeLimit,
}

impl<'a> Request<'a> {
    /// With the usual time limit.
    pub fn new(route: Route, ops: &'a [Op<'a>]) -> Request<'a> {
        Request { route, ops, limit: TimeLimit::Usual }
    }
}

/// How long a server may take to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// `io_timeout`.
    Usual,
    /// A quarter of it.
    Brief,
}

/// A request whose replies have to be received. If it is dropped instead, the operations may have
/// been carried out, and its connection is closed.
#[must_use = "the operations may not be carried out before their replies are received"]
pub struct Pending<'a>(State<'a>);

enum State<'a> {
    Ended(Replies),
    Sent(Box<dyn FnOnce() -> Replies + 'a>),
}

impl<'a> Pending<'a> {
    /// A request that is on its way. `receive` waits for the replies.
    pub fn sent(receive: impl FnOnce() -> Replies + 'a) -> Pending<'a> {
        Pending(State::Sent(Box::new(receive)))
    }

    /// A request that was carried out, or not sent.
    pub fn ended(replies: Replies) -> Pending<'a> {
        Pending(State::Ended(replies))
    }

    /// Whether the server may have received a part of the request by now.
    pub fn was_sent(&self) -> bool {
        match &self.0 {
            State::Ended(ended) => ended.as_ref().map_or_else(|failure| failure.sent, |_| true),
            State::Sent(_) => true,
        }
    }

    /// Waits for the replies.
    ///
    /// # Errors
    /// A [`Failure`] states whether the server may have received the request.
    pub fn receive(self) -> Replies {
        match self.0 {
            State::Ended(ended) => ended,
            State::Sent(receive) => receive(),
        }
    }
}

impl fmt::Debug for Pending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Ended(ended) => f.debug_tuple("Ended").field(ended).finish(),
            State::Sent(_) => f.write_str("Sent"),
        }
    }
}
