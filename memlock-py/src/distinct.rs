//! `memlock.DistinctList`: a named set whose keys have ids.

use std::sync::{Arc, Mutex, PoisonError};

use memlock_core::distinct::Entries;
use memlock_core::{Insertion, Result, SetUp};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyString};

use crate::args::{Name, Seconds, text};
use crate::subject::{Kind, Shared, Subject};

/// How many keys of add_many() are sent in one call of the core, which is one batch of its.
const BATCH: usize = 1000;

/// A named set of keys with ids, shared by everybody who knows the session's name. Made by
/// Client.distinct_list().
///
/// Exactly one of all who add a key is told that it was first, and everybody is told the same id
/// for it. Keys are str or bytes of 1 byte to 64 KiB; a str is the same key as its UTF-8 bytes.
/// They are given back as str; bytes that are not UTF-8 come as surrogates, as in os.fsdecode(), so
/// that adding what was given back always means the same key, and key.encode("utf-8",
/// "surrogateescape") gives its bytes.
///
/// The object belongs to the session that it set up or joined. Once that is torn down or has
/// expired, every call raises SessionNotFound, even if there is another session of the same name.
/// Besides, every call may raise Unreachable, OutcomeUnknown (only those that change the list) and
/// ProtocolError.
#[pyclass(frozen, module = "memlock")]
pub(crate) struct DistinctList {
    /// Never changed after its set-up: calls work on a clone of their own, so that threads need not
    /// wait for each other.
    core: memlock_core::DistinctList,
    subject: Subject,
    created: bool,
}

impl DistinctList {
    pub(crate) fn set_up(
        py: Python<'_>,
        client: &Arc<Shared>,
        session: &Name,
        duration: Seconds,
    ) -> PyResult<DistinctList> {
        let key = client.core.keys().session(&session.0);
        let subject = Subject::new(client, Kind::Session, session, &key);
        let (core, set_up) = subject.call(py, || {
            let mut list = client.core.distinct_list(&session.0)?;
            let set_up = list.set_up(duration.0)?;
            Ok((list, set_up))
        })?;
        Ok(DistinctList { core, subject, created: set_up == SetUp::Created })
    }

    /// Runs a call; `None` means that the session is gone.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut memlock_core::DistinctList) -> Result<Option<T>> + Send,
    ) -> PyResult<T> {
        self.subject
            .call(py, || body(&mut self.core.clone()))?
            .ok_or_else(|| self.subject.missing(py))
    }

    fn walk(&self, py: Python<'_>, gives: Gives) -> PyResult<Walk> {
        let entries = self.run(py, |list| list.entries())?;
        Ok(Walk { entries: Mutex::new(Some(entries)), subject: self.subject.clone(), gives })
    }
}

#[pymethods]
impl DistinctList {
    /// Whether this object's making set the session up; False when it joined one that was there.
    #[getter]
    fn created(&self) -> bool {
        self.created
    }

    /// Adds a key: True when we were the first, False when it was there already. Three round trips
    /// for a new key, one for another.
    ///
    /// Raises Invalid for an empty key or one above 64 KiB. After OutcomeUnknown the key may be in
    /// the list or not; adding it again is safe, but may then call our own key a duplicate.
    #[pyo3(text_signature = "($self, key)")]
    fn add(&self, py: Python<'_>, key: Name) -> PyResult<bool> {
        let added = self.run(py, |list| list.insert(&key.0))?;
        Ok(matches!(added, Insertion::First(_)))
    }

    /// Adds many keys, and gives a list with (id, first) for each, in their order: the key's id,
    /// and whether we were the first to add it. A key that is given twice is a duplicate the second
    /// time.
    ///
    /// Keys are drawn from the iterable and sent 1,000 at a time, in three round trips, and one
    /// more if some are duplicates. Raises as add(); some of the keys may be in the list then.
    #[pyo3(text_signature = "($self, keys)")]
    fn add_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, bool)>> {
        if keys.is_instance_of::<PyString>() || keys.is_instance_of::<PyBytes>() {
            return Err(PyTypeError::new_err(
                "add_many() takes an iterable of keys; for one key there is add()",
            ));
        }
        let mut keys = keys.try_iter()?;
        let mut added = Vec::new();
        loop {
            let batch = next_batch(&mut keys)?;
            if batch.is_empty() {
                return Ok(added);
            }
            let insertions = self.run(py, |list| list.insert_many(&batch))?;
            let pairs =
                insertions.into_iter().map(|done| (done.id(), matches!(done, Insertion::First(_))));
            added.extend(pairs);
            py.check_signals()?;
        }
    }

    /// The key's id, counted from 1 in the order of adding, and the same for everybody. One round
    /// trip.
    ///
    /// Raises KeyError when the key is not in the list.
    #[pyo3(text_signature = "($self, key)")]
    fn id(&self, py: Python<'_>, key: Name) -> PyResult<u64> {
        match self.run(py, |list| list.id(&key.0))? {
            Some(id) => Ok(id),
            None => Err(PyKeyError::new_err(text(py, &key.0)?.unbind())),
        }
    }

    /// An iterator over (id, key) in the order of ids: the keys that were in the list when it was
    /// made. They are read 256 at a time, in two round trips. Raises SessionNotFound where the
    /// session ends under it.
    fn items(&self, py: Python<'_>) -> PyResult<Walk> {
        self.walk(py, Gives::Items)
    }

    /// Ends the session for everybody, in one atomic step. False when it was over already.
    fn tear_down(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || self.core.clone().tear_down())
    }

    /// Whether the key is in the list. One round trip.
    fn __contains__(&self, py: Python<'_>, key: Name) -> PyResult<bool> {
        self.run(py, |list| list.contains(&key.0))
    }

    /// How many ids were given out: the number of keys, plus one for every adder that died or was
    /// overtaken half-way. One round trip.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.run(py, |list| list.count())?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// As items(), but gives the keys alone.
    fn __iter__(&self, py: Python<'_>) -> PyResult<Walk> {
        self.walk(py, Gives::Keys)
    }

    fn __repr__(&self) -> String {
        format!("<memlock.DistinctList {:?}>", self.subject.name)
    }
}

struct Key(Vec<u8>);

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn next_batch(keys: &mut Bound<'_, PyIterator>) -> PyResult<Vec<Key>> {
    keys.take(BATCH).map(|key| Ok(Key(key?.extract::<Name>()?.0))).collect()
}

/// What an iteration gives.
#[derive(Clone, Copy)]
enum Gives {
    Keys,
    Items,
}

/// An iteration over a list.
#[pyclass(frozen, module = "memlock._memlock", name = "_Walk")]
pub(crate) struct Walk {
    /// Taken out while a thread is reading, so that the lock is only held for an instant, and
    /// attached.
    entries: Mutex<Option<Entries>>,
    subject: Subject,
    gives: Gives,
}

#[pymethods]
impl Walk {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(mut entries) = self.place().take() else {
            return Err(PyValueError::new_err("the iterator is being advanced by another thread"));
        };
        let next = self.subject.call(py, || Ok((entries.next().transpose(), entries)));
        let (next, entries) = next?;
        *self.place() = Some(entries);
        let Some((id, key)) = next.map_err(|error| self.subject.failed(py, &error))? else {
            return Ok(None);
        };
        let key = text(py, &key)?;
        Ok(Some(match self.gives {
            Gives::Keys => key.into_any(),
            Gives::Items => (id, key).into_pyobject(py)?.into_any(),
        }))
    }
}

impl Walk {
    fn place(&self) -> std::sync::MutexGuard<'_, Option<Entries>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
