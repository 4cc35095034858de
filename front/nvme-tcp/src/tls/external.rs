//! External keys of TLS 1.3 (RFC 8446 4.2.11) of either hash function: the few functions of OpenSSL for them that its
//! binding leaves out.
//!
//! The callbacks that the binding has take a key without a hash, which then is one of SHA-256. Those here take a
//! session around the key: the hash is that of the session's suite. A connection holds what it goes by, so none of
//! them keeps anything, and nothing here belongs to anybody twice.

#![allow(unsafe_code)]

use foreign_types::ForeignTypeRef;
use lunar_nvme::auth::hash::Hash;
use lunar_nvme::auth::psk::Offer;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslRef};
use openssl_sys as ffi;
use std::ffi::{CStr, c_int, c_uchar, c_uint};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

type Find = unsafe extern "C" fn(*mut ffi::SSL, *const c_uchar, usize, *mut *mut ffi::SSL_SESSION) -> c_int;
#[cfg(any(test, feature = "testing"))]
type Present = unsafe extern "C" fn(
    *mut ffi::SSL,
    *const ffi::EVP_MD,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut ffi::SSL_SESSION,
) -> c_int;

// SAFETY: as ssl.h declares them, from OpenSSL 1.1.1 on.
unsafe extern "C" {
    fn SSL_CTX_set_psk_find_session_callback(context: *mut ffi::SSL_CTX, callback: Option<Find>);
    #[cfg(any(test, feature = "testing"))]
    fn SSL_CTX_set_psk_use_session_callback(context: *mut ffi::SSL_CTX, callback: Option<Present>);
    fn SSL_CIPHER_find(ssl: *mut ffi::SSL, suite: *const c_uchar) -> *const ffi::SSL_CIPHER;
    fn SSL_SESSION_new() -> *mut ffi::SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut ffi::SSL_SESSION, key: *const c_uchar, len: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut ffi::SSL_SESSION, suite: *const ffi::SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut ffi::SSL_SESSION, version: c_int) -> c_int;
}

/// The extension of a greeting that names external keys.
const PRE_SHARED_KEY: c_uint = 41;

/// The cipher suite of a hash function, as it is called and as it is written (RFC 8446 B.4).
pub(super) fn suite(hash: Hash) -> (&'static CStr, [u8; 2]) {
    match hash {
        Hash::SHA384 => (c"TLS_AES_256_GCM_SHA384", [0x13, 0x02]),
        _ => (c"TLS_AES_128_GCM_SHA256", [0x13, 0x01]),
    }
}

/// Where a connection holds what it goes by.
fn place() -> Result<Index<Ssl, Offer>, ErrorStack> {
    static PLACE: OnceLock<Index<Ssl, Offer>> = OnceLock::new();
    if let Some(place) = PLACE.get() {
        return Ok(*place);
    }
    let made = Ssl::new_ex_index()?;
    Ok(*PLACE.get_or_init(|| made))
}

fn held(ssl: &SslRef) -> Option<&Offer> {
    ssl.ex_data(place().ok()?)
}

/// A connection goes by this key: the one that it knows, or the one that it presents.
///
/// # Errors
/// When OpenSSL has no memory.
pub fn hold(ssl: &mut SslRef, offer: Offer) -> Result<(), ErrorStack> {
    ssl.set_ex_data(place()?, offer);
    Ok(())
}

/// Connections of a server find the key that they hold.
pub(super) fn found_by(context: &mut SslContextBuilder) {
    // SAFETY: the context lives, and the callback stays where it is.
    unsafe { SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find)) }
}

/// Connections of a client present the key that they hold: the other side, for tests.
#[cfg(any(test, feature = "testing"))]
pub fn presented_by(context: &mut SslContextBuilder) {
    // SAFETY: the context lives, and the callback stays where it is.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(present)) }
}

/// A connection agrees to the cipher suite of this hash function alone; whether OpenSSL can.
pub(super) fn restrict_to(ssl: &mut SslRef, hash: Hash) -> bool {
    // SAFETY: the connection lives, and the name ends with a zero.
    unsafe { ffi::SSL_set_ciphersuites(ssl.as_ptr(), suite(hash).0.as_ptr()) == 1 }
}

/// What a greeting says of external keys. There is nothing but while it is looked at, before anything is chosen.
pub(super) fn named_keys(ssl: &SslRef) -> Option<&[u8]> {
    let (mut start, mut len) = (null(), 0);
    // SAFETY: the connection lives; OpenSSL writes where the extension is, and how long. The greeting stays as it is
    // while its callback runs, which has borrowed the connection; elsewhere there is no greeting, and nothing is found.
    unsafe {
        let found = ffi::SSL_client_hello_get0_ext(ssl.as_ptr(), PRE_SHARED_KEY, &raw mut start, &raw mut len) == 1;
        (found && !start.is_null()).then(|| std::slice::from_raw_parts(start, len))
    }
}

/// A session around a key, which belongs to the caller; null if there is no memory.
///
/// # Safety
/// `ssl` is a connection that lives.
unsafe fn session_around(ssl: *mut ffi::SSL, offer: &Offer) -> *mut ffi::SSL_SESSION {
    // SAFETY: the connection lives by what is asked of the caller, the new session until it is freed here or belongs
    // to him; key and suite are read where they are, as long as they are.
    unsafe {
        let suite = SSL_CIPHER_find(ssl, suite(offer.hash).1.as_ptr());
        let session = SSL_SESSION_new();
        let is_whole = !suite.is_null()
            && !session.is_null()
            && SSL_SESSION_set1_master_key(session, offer.key.as_ptr(), offer.key.len()) == 1
            && SSL_SESSION_set_cipher(session, suite) == 1
            && SSL_SESSION_set_protocol_version(session, ffi::TLS1_3_VERSION) == 1;
        if is_whole {
            return session;
        }
        // Of none there is nothing to free.
        ffi::SSL_SESSION_free(session);
        null_mut()
    }
}

/// The key of this identity. Without one there is no session, and no channel.
///
/// # Safety
/// For OpenSSL: a connection that lives, an identity of `len` bytes, and room for a session.
unsafe extern "C" fn find(
    ssl: *mut ffi::SSL,
    identity: *const c_uchar,
    len: usize,
    session: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: so OpenSSL calls it. What the connection holds stays while it is looked at; the session is OpenSSL's
    // then.
    unsafe {
        let identity = if identity.is_null() { &[] } else { std::slice::from_raw_parts(identity, len) };
        let known = held(SslRef::from_ptr(ssl)).filter(|offer| offer.identity.as_bytes() == identity);
        *session = known.map_or(null_mut(), |offer| session_around(ssl, offer));
    }
    1
}

/// The identity and the key that are presented.
///
/// # Safety
/// For OpenSSL: a connection that lives, and room for where an identity is, how long, and for a session.
#[cfg(any(test, feature = "testing"))]
unsafe extern "C" fn present(
    ssl: *mut ffi::SSL,
    _digest: *const ffi::EVP_MD,
    identity: *mut *const c_uchar,
    len: *mut usize,
    session: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: so OpenSSL calls it. The identity stays where it is while hands are shaken, for the connection holds it,
    // and OpenSSL copies it at once; the session is OpenSSL's then.
    unsafe {
        *session = null_mut();
        if let Some(offer) = held(SslRef::from_ptr(ssl)) {
            (*identity, *len) = (offer.identity.as_ptr(), offer.identity.len());
            *session = session_around(ssl, offer);
        }
    }
    1
}
