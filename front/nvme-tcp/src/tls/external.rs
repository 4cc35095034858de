//! Pre-shared keys of TLS 1.3 (RFC 8446 4.2.11) for both hash functions, by OpenSSL functions that its Rust binding
//! lacks.
//!
//! The callbacks of the binding take a key without a hash function, for which OpenSSL assumes SHA-256. The callbacks
//! here return a session that holds the key: the session's cipher suite determines the hash function. The key is stored
//! with the connection, so that no function here owns memory of OpenSSL.

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

type FindCallback = unsafe extern "C" fn(*mut ffi::SSL, *const c_uchar, usize, *mut *mut ffi::SSL_SESSION) -> c_int;
#[cfg(any(test, feature = "testing"))]
type PresentCallback = unsafe extern "C" fn(
    *mut ffi::SSL,
    *const ffi::EVP_MD,
    *mut *const c_uchar,
    *mut usize,
    *mut *mut ffi::SSL_SESSION,
) -> c_int;

// SAFETY: the declarations match those of ssl.h from OpenSSL 1.1.1 on.
unsafe extern "C" {
    fn SSL_CTX_set_psk_find_session_callback(context: *mut ffi::SSL_CTX, callback: Option<FindCallback>);
    #[cfg(any(test, feature = "testing"))]
    fn SSL_CTX_set_psk_use_session_callback(context: *mut ffi::SSL_CTX, callback: Option<PresentCallback>);
    fn SSL_CIPHER_find(ssl: *mut ffi::SSL, suite: *const c_uchar) -> *const ffi::SSL_CIPHER;
    fn SSL_SESSION_new() -> *mut ffi::SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut ffi::SSL_SESSION, key: *const c_uchar, len: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut ffi::SSL_SESSION, suite: *const ffi::SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut ffi::SSL_SESSION, version: c_int) -> c_int;
}

/// The `pre_shared_key` extension of a ClientHello.
const PRE_SHARED_KEY: c_uint = 41;

/// The cipher suite of a hash function: its name, and its code (RFC 8446 B.4).
pub(super) fn suite(hash: Hash) -> (&'static CStr, [u8; 2]) {
    match hash {
        Hash::SHA384 => (c"TLS_AES_256_GCM_SHA384", [0x13, 0x02]),
        _ => (c"TLS_AES_128_GCM_SHA256", [0x13, 0x01]),
    }
}

/// The index of the key among the application data of a connection.
fn key_index() -> Result<Index<Ssl, Offer>, ErrorStack> {
    static PLACE: OnceLock<Index<Ssl, Offer>> = OnceLock::new();
    if let Some(key_index) = PLACE.get() {
        return Ok(*key_index);
    }
    let made = Ssl::new_ex_index()?;
    Ok(*PLACE.get_or_init(|| made))
}

fn stored(ssl: &SslRef) -> Option<&Offer> {
    ssl.ex_data(key_index().ok()?)
}

/// Stores the key of a connection: the one that a server accepts or a client presents.
///
/// # Errors
/// When OpenSSL has no memory.
pub fn hold(ssl: &mut SslRef, offer: Offer) -> Result<(), ErrorStack> {
    ssl.set_ex_data(key_index()?, offer);
    Ok(())
}

/// Has connections of a server accept the key that [`hold`] has stored.
pub(super) fn found_by(context: &mut SslContextBuilder) {
    // SAFETY: the context is valid, and a function pointer stays valid.
    unsafe { SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find)) }
}

/// Has connections of a client present the key that [`hold`] has stored; for tests.
#[cfg(any(test, feature = "testing"))]
pub fn presented_by(context: &mut SslContextBuilder) {
    // SAFETY: the context is valid, and a function pointer stays valid.
    unsafe { SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(present)) }
}

/// Restricts a connection to the cipher suite of this hash function; returns whether OpenSSL accepts that.
pub(super) fn restrict_to(ssl: &mut SslRef, hash: Hash) -> bool {
    // SAFETY: the connection is valid, and the name ends with NUL.
    unsafe { ffi::SSL_set_ciphersuites(ssl.as_ptr(), suite(hash).0.as_ptr()) == 1 }
}

/// The `pre_shared_key` extension of the ClientHello. Only available in the ClientHello callback.
pub(super) fn named_keys(ssl: &SslRef) -> Option<&[u8]> {
    let (mut start, mut len) = (null(), 0);
    // SAFETY: the connection is valid; OpenSSL returns the address and the length of the extension. The ClientHello
    // does not change while its callback runs, which has borrowed the connection; outside of it OpenSSL finds no
    // extension.
    unsafe {
        let found = ffi::SSL_client_hello_get0_ext(ssl.as_ptr(), PRE_SHARED_KEY, &raw mut start, &raw mut len) == 1;
        (found && !start.is_null()).then(|| std::slice::from_raw_parts(start, len))
    }
}

/// A session that holds a key, owned by the caller; null if there is no memory.
///
/// # Safety
/// `ssl` is a valid connection.
unsafe fn session_around(ssl: *mut ffi::SSL, offer: &Offer) -> *mut ffi::SSL_SESSION {
    // SAFETY: the connection is valid by the caller's contract, and the new session until it is freed here or returned;
    // key and suite are read within their lengths.
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
        // Freeing a null session is allowed.
        ffi::SSL_SESSION_free(session);
        null_mut()
    }
}

/// Callback of OpenSSL: the session of a PSK identity; null if it is not the stored one, and the handshake then fails.
///
/// # Safety
/// Called by OpenSSL with a valid connection, an identity of `len` bytes, and a valid place for a session.
unsafe extern "C" fn find(
    ssl: *mut ffi::SSL,
    identity: *const c_uchar,
    len: usize,
    session: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL passes valid arguments. The stored key is not changed while it is read; OpenSSL owns the session
    // afterwards.
    unsafe {
        let identity = if identity.is_null() { &[] } else { std::slice::from_raw_parts(identity, len) };
        let known = stored(SslRef::from_ptr(ssl)).filter(|offer| offer.identity.as_bytes() == identity);
        *session = known.map_or(null_mut(), |offer| session_around(ssl, offer));
    }
    1
}

/// Callback of OpenSSL: the identity and the session that a client presents.
///
/// # Safety
/// Called by OpenSSL with a valid connection, and valid places for an identity, its length and a session.
#[cfg(any(test, feature = "testing"))]
unsafe extern "C" fn present(
    ssl: *mut ffi::SSL,
    _digest: *const ffi::EVP_MD,
    identity: *mut *const c_uchar,
    len: *mut usize,
    session: *mut *mut ffi::SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL passes valid arguments. The connection stores the identity during the handshake, and OpenSSL
    // copies it at once; OpenSSL owns the session afterwards.
    unsafe {
        *session = null_mut();
        if let Some(offer) = stored(SslRef::from_ptr(ssl)) {
            (*identity, *len) = (offer.identity.as_ptr(), offer.identity.len());
            *session = session_around(ssl, offer);
        }
    }
    1
}
