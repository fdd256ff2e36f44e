//! Starting acquisitions.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::{Answer, Guard, Pending, Report};
use pyo3::prelude::*;

use super::call::Call;
use super::held::Held;
use crate::acquisition::Acquisition;
use crate::deferral::Scope;
use crate::green::Agent;
use crate::renew::Renew;
use crate::shared_client::SharedClient;
use crate::subject::Subject;

/// What is acquired, and how.
pub(crate) struct Wanted<'a> {
    pub(crate) client: &'a Arc<SharedClient>,
    pub(crate) subject: &'a Subject,
    pub(crate) permits: u32,
    pub(crate) lease: Duration,
    pub(crate) renew: Option<Renew>,
}

/// A call that returns a `_Held`, or the exception `TimedOut` if nothing was acquired in time: the caller
/// decides whether to raise it.
pub(crate) fn acquire<G>(
    py: Python<'_>,
    wanted: Wanted<'_>,
    begin: impl FnOnce() -> Pending<std::result::Result<G, Report>> + Send,
) -> PyResult<Call>
where
    G: Guard + Send + 'static,
{
    let Wanted { client, subject, permits, lease, renew } = wanted;
    subject.check_open(py)?;
    let pending = py.detach(begin);
    let (client, subject) = (Arc::clone(client), subject.clone());
    Ok(Call::new(pending, move |py, result| {
        let report = match result.map_err(|error| subject.failed(py, &error))? {
            Ok(guard) => {
                let renew = renew.as_ref();
                let held = {
                    let by = (Scope::Call, Agent::current(py));
                    py.detach(|| Acquisition::new(Box::new(guard), renew, by))
                };
                let held = held.map_err(|error| subject.failed(py, &error))?;
                let callbacks = renew.map(|renew| renew.callbacks(py));
                let held = Held::new(py, (held, permits), (client, subject), lease, callbacks);
                return Ok(Py::new(py, held)?.into_any());
            }
            Err(report) => report,
        };
        match report.answer() {
            Answer::Interrupted => {
                subject.check_open(py)?;
                Err(subject.raise_plain(py, Answer::Interrupted))
            }
            Answer::Recovering => Err(subject.reported(py, &report)),
            _ => Ok(subject.timed_out(py, &report).into_value(py).into_any()),
        }
    }))
}
