//! `memlock.DistinctList`: a named set whose keys have ids.

use std::sync::{Arc, Mutex, PoisonError};

use memlock_core::distinct_list::Entries;
use memlock_core::{Insertion, Result, SetUp};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyString};

use crate::args::{Name, Seconds, text};
use crate::shared_client::SharedClient;
use crate::subject::{Kind, Subject, creation_error};

/// The number of keys that insert_many() sends in one call of the core: one batch of the core.
const BATCH: usize = 1000;

/// A named set of keys with ids, shared by all processes that use the session's name. Made by
/// Client.distinct_list().
///
/// Exactly one of all inserts of a key returns True, and all callers get the same id for a key.
/// Keys are str or bytes of 1 byte to 64 KiB; a str is the same key as its UTF-8 bytes. Keys are
/// returned as str; bytes that are not UTF-8 are returned as surrogates, as by os.fsdecode(), so
/// that inserting a returned key always means the same key, and key.encode("utf-8",
/// "surrogateescape") returns its bytes.
///
/// The object belongs to the session that it set up or joined. Once that session is torn down or
/// has expired, every call raises SessionNotFound, even if there is another session of the same
/// name. Every call may also raise Unreachable and ProtocolError, and those that change the list
/// OutcomeUnknown. Any number of threads may use it, and so may forked children.
#[pyclass(frozen, module = "memlock")]
pub(crate) struct DistinctList {
    /// Never changed after set-up: each call works on its own clone, so that threads do not wait
    /// for each other.
    core: memlock_core::DistinctList,
    subject: Subject,
    created: bool,
}

impl DistinctList {
    pub(crate) fn set_up(
        py: Python<'_>,
        client: &Arc<SharedClient>,
        session: &Name,
        duration: Seconds,
    ) -> PyResult<DistinctList> {
        let list = client.core.distinct_list(&session.0);
        let mut list =
            list.map_err(|error| creation_error(py, client, "distinct list", session, &error))?;
        let subject = Subject::new(client, Kind::Session, session, list.subject());
        let (core, set_up) = subject.call(py, || {
            let set_up = list.set_up(duration.0)?;
            Ok((list, set_up))
        })?;
        Ok(DistinctList { core, subject, created: set_up == SetUp::Created })
    }

    /// Runs a call; `None` means that the session does not exist any more.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut memlock_core::DistinctList) -> Result<Option<T>> + Send,
    ) -> PyResult<T> {
        self.subject
            .call(py, || body(&mut self.core.clone()))?
            .ok_or_else(|| self.subject.not_found(py))
    }

    fn iterate(&self, py: Python<'_>, yields: Yields) -> PyResult<ListIterator> {
        let entries = self.run(py, |list| list.entries())?;
        Ok(ListIterator {
            entries: Mutex::new(Some(entries)),
            subject: self.subject.clone(),
            yields,
        })
    }
}

#[pymethods]
impl DistinctList {
    /// Whether this object has set the session up; False if it joined an existing one.
    #[getter]
    fn created(&self) -> bool {
        self.created
    }

    /// Insert a key, and return whether this insert was the first.
    ///
    /// Three round trips for a new key, one for a duplicate. Raises Invalid for an empty key or one
    /// above 64 KiB. After OutcomeUnknown the key may or may not be in the list; inserting it again
    /// is safe, but may report the caller's own key as a duplicate.
    #[pyo3(text_signature = "($self, key)")]
    fn insert(&self, py: Python<'_>, key: Name) -> PyResult<bool> {
        let insertion = self.run(py, |list| list.insert(&key.0))?;
        Ok(matches!(insertion, Insertion::First(_)))
    }

    /// An alias of insert(), the name that sets use.
    #[pyo3(text_signature = "($self, key)")]
    fn add(&self, py: Python<'_>, key: Name) -> PyResult<bool> {
        self.insert(py, key)
    }

    /// Insert many keys, and return a list with (id, first) for each, in the same order: the id of
    /// the key, and whether this insert was the first.
    ///
    /// A key that occurs twice is a duplicate the second time. Keys are taken from the iterable and
    /// sent in batches of 1,000, in three round trips each, and one more if some are duplicates.
    /// Raises as insert(); some of the keys may then be in the list.
    #[pyo3(text_signature = "($self, keys)")]
    fn insert_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, bool)>> {
        if keys.is_instance_of::<PyString>() || keys.is_instance_of::<PyBytes>() {
            return Err(PyTypeError::new_err(
                "insert_many() takes an iterable of keys: use insert() for a single key",
            ));
        }
        let mut keys = keys.try_iter()?;
        let mut results = Vec::new();
        loop {
            let batch = next_batch(&mut keys)?;
            if batch.is_empty() {
                return Ok(results);
            }
            let insertions = self.run(py, |list| list.insert_many(&batch))?;
            let pairs =
                insertions.into_iter().map(|done| (done.id(), matches!(done, Insertion::First(_))));
            results.extend(pairs);
            py.check_signals()?;
        }
    }

    /// An alias of insert_many().
    #[pyo3(text_signature = "($self, keys)")]
    fn add_many(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<Vec<(u64, bool)>> {
        self.insert_many(py, keys)
    }

    /// The id of a key, counted from 1 in the order of insertion, and the same for all callers. One
    /// round trip.
    ///
    /// Raises KeyError when the key is not in the list.
    #[pyo3(text_signature = "($self, key)")]
    fn id(&self, py: Python<'_>, key: Name) -> PyResult<u64> {
        match self.run(py, |list| list.id(&key.0))? {
            Some(id) => Ok(id),
            None => Err(PyKeyError::new_err(text(py, &key.0)?.unbind())),
        }
    }

    /// An iterator over (id, key), in the order of ids, of the keys that are in the list now.
    ///
    /// Reads 256 keys at a time, in two round trips. Raises SessionNotFound if the session ends
    /// during the iteration.
    fn items(&self, py: Python<'_>) -> PyResult<ListIterator> {
        self.iterate(py, Yields::Items)
    }

    /// End the session for all processes, in one atomic step. Returns False if it had already
    /// ended.
    fn tear_down(&self, py: Python<'_>) -> PyResult<bool> {
        self.subject.call(py, || self.core.clone().tear_down())
    }

    /// Whether the key is in the list. One round trip.
    fn __contains__(&self, py: Python<'_>, key: Name) -> PyResult<bool> {
        self.run(py, |list| list.contains(&key.0))
    }

    /// The number of assigned ids: the number of keys, plus one for each insert whose process died,
    /// or that was overtaken, half-way. One round trip.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = self.run(py, |list| list.count())?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// An iterator over the keys, as items().
    fn __iter__(&self, py: Python<'_>) -> PyResult<ListIterator> {
        self.iterate(py, Yields::Keys)
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

/// What an iteration yields.
#[derive(Clone, Copy)]
enum Yields {
    Keys,
    Items,
}

/// An iteration over a list.
#[pyclass(frozen, module = "memlock._memlock", name = "_DistinctListIterator")]
pub(crate) struct ListIterator {
    /// Taken out while a thread reads, so that the lock is held only briefly, and with the GIL.
    entries: Mutex<Option<Entries>>,
    subject: Subject,
    yields: Yields,
}

#[pymethods]
impl ListIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(mut entries) = self.entries().take() else {
            return Err(PyValueError::new_err("the iterator is being advanced by another thread"));
        };
        let next = self.subject.call(py, || Ok((entries.next().transpose(), entries)));
        let (next, entries) = next?;
        *self.entries() = Some(entries);
        let Some((id, key)) = next.map_err(|error| self.subject.failed(py, &error))? else {
            return Ok(None);
        };
        let key = text(py, &key)?;
        Ok(Some(match self.yields {
            Yields::Keys => key.into_any(),
            Yields::Items => (id, key).into_pyobject(py)?.into_any(),
        }))
    }
}

impl ListIterator {
    fn entries(&self) -> std::sync::MutexGuard<'_, Option<Entries>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
