//! The routes of logins: a browser exchanges a token or a one-time link for a cookie.

use super::{Authenticated, State, problem, read, respond};
use crate::audit::Topic;
use crate::browser;
use crate::logins::{CallerView, LINK_TIME_MAX, LinkView, LoginRequest};
use crate::request::{Problem, Reply};
use crate::rights::{Caller, Credentials, Peer, Right, unauthenticated};
use crate::route::{LoginStep, Route};
use axum::body::Body;
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::response::Response;
use lunar_core::time::Instant as Time;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use tokio::time::sleep;

fn no_random(why: io::Error) -> Problem {
    problem("/problems/internal", "No random bytes", 500, &format!("there are no random bytes: {why}"))
}

impl State {
    /// Executes a step of a login whose caller is known.
    pub(super) fn login_step(&self, step: LoginStep, parts: &Parts, who: &Authenticated) -> Result<Response, Problem> {
        match step {
            // The server handles these before it knows a caller.
            LoginStep::LogIn | LoginStep::Show => Ok(respond(Reply::json(&CallerView::from(&who.caller))?)),
            LoginStep::LogOut => {
                if let Some(key) = &who.session
                    && self.logins.end(key, Instant::now())
                {
                    self.shared.audit_log.add(Topic::Logout, &who.caller.name, "logged out of the page");
                    // The streams of the session end.
                    self.changes.send_replace(());
                }
                let mut response = respond(Reply::json(&CallerView::from(&who.caller))?);
                let cookie = browser::set_cookie(parts, None);
                cookie.into_iter().for_each(|cookie| drop(response.headers_mut().insert(SET_COOKIE, cookie)));
                Ok(response)
            }
            LoginStep::Link => {
                let key = self.logins.add_link(who.credentials.clone(), Instant::now()).map_err(no_random)?;
                let words = format!("made a one-time link for the page, valid for {} s", LINK_TIME_MAX.as_secs());
                self.shared.audit_log.add(Topic::Service, &who.caller.name, &words);
                Ok(respond(Reply::json(&LinkView { key: key.text().to_owned(), seconds: LINK_TIME_MAX.as_secs() })?))
            }
        }
    }

    /// `GET /v1/login`: a page that asks whether it is logged in makes no mistake if it is not.
    pub(super) fn show_login(&self, parts: &Parts) -> Result<Response, Problem> {
        let view = match self.authenticate(parts) {
            Ok(who) => CallerView::from(&who.caller),
            Err(why) if why.status() == 421 => return Err(why),
            Err(_) => CallerView { name: String::new(), role: Right::None.word() },
        };
        Ok(respond(Reply::json(&view)?))
    }

    /// `POST /v1/login`
    pub(super) async fn log_in(
        self: &Arc<Self>,
        route: &Route,
        parts: &Parts,
        body: Body,
    ) -> Result<Response, Problem> {
        browser::check_origin(parts)?;
        let (source, from) = match parts.extensions.get::<Peer>() {
            Some(Peer::Remote(from)) => (from.ip(), from.ip().to_string()),
            _ => (IpAddr::from(Ipv4Addr::LOCALHOST), "this host".to_owned()),
        };
        let wait = self.throttle().turn(source, self.time());
        let busy = || problem("/problems/busy", "Too many wrong logins", 429, "too many logins have failed: try later");
        sleep(wait.ok_or_else(busy)?).await;
        let body = read(route, body).await?;
        let wrong = || Problem::bad_request("a login has either a `token` or a `link`");
        // The message of the parser may quote the token.
        let request: LoginRequest = serde_json::from_slice(&body).map_err(|_| wrong())?;
        let found = match (&request.token, &request.link) {
            (Some(token), None) => self.policy().find(token.trim().as_bytes()),
            (None, Some(link)) => self
                .logins
                .take_link(link, Instant::now())
                .ok_or_else(|| unauthenticated("this link was used or is too old: run `lunar web` again")),
            _ => return Err(wrong()),
        };
        let found = found.and_then(|credentials| Ok((self.policy().caller(&credentials)?, credentials)));
        let (caller, credentials): (Caller, Credentials) = match found {
            Ok(found) => found,
            Err(why) => {
                let pause = self.throttle().failed(source, &from.as_str().into(), self.time());
                self.shared.audit_log.add_refusal(&from, &from, &format!("login at the page: {}", why.detail));
                sleep(pause).await;
                return Err(why.into());
            }
        };
        caller.check_right(Right::Read)?;
        let key = self.logins.begin(credentials, Instant::now()).map_err(no_random)?;
        self.shared.audit_log.add(Topic::Login, &caller.name, &format!("logged in at the page from {from}"));
        let mut response = respond(Reply::json(&CallerView::from(&caller))?);
        let cookie = browser::set_cookie(parts, Some(&key));
        cookie.into_iter().for_each(|cookie| drop(response.headers_mut().insert(SET_COOKIE, cookie)));
        Ok(response)
    }

    fn throttle(&self) -> std::sync::MutexGuard<'_, lunar_core::access::throttle::Throttle> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the server started, as the throttle measures it.
    fn time(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
