//! What a server tells about itself, and about what is in memlock's schema there.

use super::errors;
use super::request::{BIGINT, BYTEA, TEXT, TIMESTAMPTZ};
use super::schema::{REVISION, Schema};
use super::settings::Settings;
use super::wire::{Complaint, Rows, SEARCH_PATH, Wire, is_true, nonsense};
use crate::error::{Error, Result};
use crate::store::Failure;

/// The answers to [`questions`].
#[derive(Debug)]
pub(super) struct About {
    pub(super) process: i32,
    pub(super) is_standby: bool,
    pub(super) version: u32,
    pub(super) is_read_only: bool,
    pub(super) isolation: String,
    /// Whether the tables are logged; `None` if there are none.
    pub(super) is_durable: Option<bool>,
    /// A table, or the sequence, that is not as memlock creates it.
    misfit: Option<String>,
    /// Owners of the schema, or of a part of it, that are neither the user, nor a role of which the user
    /// is a member, nor an owner of the database, nor a superuser.
    #[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "for the doctor"))]
    pub(super) strangers: Option<String>,
    /// If the user is a superuser, or can become one: owners that are neither the user, nor an owner of
    /// the database, nor a superuser. A superuser counts as a member of all roles.
    pub(super) superusers_strangers: Option<String>,
    /// Whether all tables and functions are there.
    pub(super) is_whole: bool,
    /// Whether the functions are of this revision, or a later one.
    pub(super) is_current: bool,
    /// Whether the user may replace them.
    pub(super) may_upgrade: bool,
}

/// The type of `life.one`.
const BOOLEAN: u32 = 16;

/// Some administrators hide the roles: this is asked only where it matters.
const IS_SUPERUSER: &str = "SELECT EXISTS (SELECT FROM pg_roles
    WHERE rolsuper AND pg_has_role(session_user, oid, 'MEMBER'))";

fn questions(schema: &Schema) -> String {
    let name = schema.name();
    format!(
        "WITH place AS (SELECT oid, nspowner FROM pg_namespace WHERE nspname = '{name}'),
        relations AS (SELECT c.oid, relname, relowner, relkind, relpersistence, relrowsecurity
            FROM pg_class AS c, place AS n
            WHERE relnamespace = n.oid AND relname IN ('items', 'life', 'numbers')),
        functions AS (SELECT proowner, pronamespace, prokind, prosrc, proconfig
            FROM pg_proc AS p, place AS n
            WHERE pronamespace = n.oid AND (proname, proargtypes::text) IN ({functions})),
        owners AS (SELECT owner, pg_get_userbyid(owner) AS name FROM (
                SELECT nspowner AS owner FROM place UNION SELECT relowner FROM relations
                UNION SELECT proowner FROM functions) AS all_owners, pg_database
            WHERE datname = current_database() AND NOT pg_has_role(owner, datdba, 'MEMBER')
            AND pg_get_userbyid(owner) <> 'pg_database_owner')
        SELECT pg_backend_pid(), pg_is_in_recovery(), current_setting('server_version_num'),
            current_setting('transaction_read_only'), current_setting('transaction_isolation'),
            (SELECT relpersistence FROM relations WHERE relname = 'items'),
            (SELECT min(relname::text) FROM relations AS c WHERE NOT ({is_fit})),
            (SELECT string_agg(quote_ident(name), ', ') FROM owners
                WHERE name <> current_user AND NOT pg_has_role(owner, 'MEMBER')),
            (SELECT string_agg(quote_ident(name), ', ') FROM owners WHERE name <> session_user),
            (SELECT count(*) FROM relations) = 3 AND (SELECT count(*) FROM functions) = 3,
            (SELECT bool_and(revision > {REVISION}
                OR revision = {REVISION}
                    AND coalesce('search_path={SEARCH_PATH}' = ANY (proconfig), false))
                IS TRUE FROM (SELECT *,
                    coalesce(substring(prosrc FROM '^ -- Revision ([0-9]{{1,9}})')::integer, 1)
                        AS revision FROM functions) AS revised),
            (SELECT bool_and(pg_has_role(proowner, 'USAGE')
                AND has_schema_privilege(pronamespace, 'CREATE')
                AND has_language_privilege('plpgsql', 'USAGE')) IS TRUE FROM functions)",
        functions = schema.functions(),
        is_fit = is_fit(),
    )
}

/// Whether a relation `c` is as memlock creates it, as far as locks depend on it; and runs no code of
/// others than its owner.
fn is_fit() -> String {
    format!(
        "CASE relname
            WHEN 'numbers' THEN relpersistence = 'p'
                AND EXISTS (SELECT FROM pg_sequence WHERE seqrelid = c.oid
                    AND seqtypid = {BIGINT} AND seqincrement > 0 AND seqcache = 1 AND NOT seqcycle)
            ELSE relkind = 'r' AND NOT relrowsecurity
                AND (relname = 'items' OR (relpersistence = (SELECT relpersistence FROM relations
                    WHERE relname = 'items')) IS NOT FALSE)
                AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid)
                AND NOT EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid)
                AND NOT EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhparent, inhrelid))
                AND NOT EXISTS (SELECT FROM pg_attrdef WHERE adrelid = c.oid
                    AND (relname::text, replace(pg_get_expr(adbin, adrelid), '\"', ''))
                        NOT IN (('life', 'true'), ('life', '''''::text')))
                AND NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid
                    AND CASE contype WHEN 'c'
                        THEN (relname::text, replace(pg_get_expr(conbin, conrelid), '\"', ''))
                            <> ('life', 'one')
                        ELSE contype NOT IN ('p', 'n') END)
                AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid
                    AND (indexprs IS NOT NULL OR indpred IS NOT NULL))
                AND (SELECT count(*) FROM pg_index
                    WHERE indrelid = c.oid AND (indisunique OR indisexclusion)) = 1
                AND EXISTS (SELECT FROM pg_index JOIN pg_attribute
                        ON attrelid = indrelid AND attnum = indkey[0]
                    WHERE indrelid = c.oid AND indisunique AND indisvalid AND indimmediate
                    AND indnkeyatts = 1 AND indcollation[0] = attcollation
                    AND attname = CASE relname WHEN 'items' THEN 'key' ELSE 'one' END)
                AND (SELECT count(*) FROM pg_attribute
                    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                    AND attidentity = '') = 4
                AND (SELECT count(*) FROM pg_attribute
                        LEFT JOIN pg_collation AS o ON o.oid = attcollation
                    WHERE attrelid = c.oid AND attnotnull AND NOT attisdropped AND atttypmod = -1
                    AND collisdeterministic IS NOT FALSE
                    AND (relname::text, attname::text, atttypid) IN (
                        ('items', 'key', {TEXT}), ('items', 'value', {BYTEA}),
                        ('items', 'version', {BIGINT}), ('items', 'expires', {TIMESTAMPTZ}),
                        ('life', 'one', {BOOLEAN}), ('life', 'id', {BIGINT}),
                        ('life', 'timeline', {TEXT}), ('life', 'swept', {TEXT}))) = 4
        END",
    )
}

impl About {
    /// Asks the server.
    ///
    /// # Errors
    /// `CONFIG` if a table or the sequence is not as memlock creates it: without the primary key two
    /// rows could stand for one lock, and a sequence that cycles or is cached gives fences that fall.
    pub(super) fn of(wire: &mut Wire, settings: &Settings) -> Result<About> {
        let schema = &settings.schema;
        let rows = ask(wire, settings, &questions(schema))?;
        let mut about = About::parse(rows).ok_or_else(nonsense)?;
        if about.superusers_strangers.is_some() && !is_true(&ask(wire, settings, IS_SUPERUSER)?) {
            about.superusers_strangers = None;
        }
        match &about.misfit {
            None => Ok(about),
            Some(name) => Err(Error::config(format!(
                "{}.{name:?} is not as memlock creates it: a lock could be granted twice, or code of others be run. \
                 Compare it with what `{}` prints. Then mend it, or drop it while no lock is held, or name \
                 another schema in the URL.",
                schema.quoted(),
                schema.print_command(),
            ))),
        }
    }

    /// The functions of a schema could do with the rights of its users what its owner likes.
    ///
    /// # Errors
    /// `CONFIG` if the user is a superuser, or can become one, and an owner need not be trusted so far.
    pub(super) fn spare_superusers(&self, settings: &Settings) -> Result<()> {
        let Some(strangers) = &self.superusers_strangers else { return Ok(()) };
        Err(Error::config(format!(
            "The user {:?} is a superuser, or can become one, and the schema {:?} or a part of it is owned by \
             {strangers}, whose functions could run with all rights. Log in as its owner, or as a user with \
             the rights that locks need: {}",
            settings.user,
            settings.schema.name(),
            settings.schema.grants("user"),
        )))
    }

    pub(super) fn parse(rows: Rows) -> Option<About> {
        let [row] = <[_; 1]>::try_from(rows).ok()?;
        let [
            process,
            standby,
            version,
            read_only,
            isolation,
            persistence,
            misfit,
            strangers,
            superusers_strangers,
            whole,
            current,
            may_upgrade,
        ] = <[Option<String>; 12]>::try_from(row).ok()?;
        Some(About {
            process: process?.parse().ok()?,
            is_standby: standby? == "t",
            version: version?.parse().ok()?,
            is_read_only: read_only? == "on",
            isolation: isolation?,
            is_durable: persistence.map(|kind| kind == "p"),
            misfit,
            strangers,
            superusers_strangers,
            is_whole: whole? == "t",
            is_current: current? == "t",
            may_upgrade: may_upgrade? == "t",
        })
    }
}

/// Runs statements; an error of the server is an error.
pub(super) fn ask(wire: &mut Wire, settings: &Settings, text: &str) -> Result<Rows> {
    asked(wire.query(text), settings)
}

pub(super) fn asked<T>(
    answer: std::result::Result<std::result::Result<T, Complaint>, Failure>,
    settings: &Settings,
) -> Result<T> {
    let answer = answer.map_err(|failure| failure.error)?;
    answer.map_err(|said| errors::of(&said, &settings.schema, &settings.user))
}
