use super::*;
use crate::session::Refusal;
pub(super) fn plan_fork(_: &Session, _: &History, _: u32) -> Result<Plan> {
    Err(Refusal::Internal { what: String::new() })
}
pub(super) fn plan_undo(_: &Session, _: &History, _: u32) -> Result<Plan> {
    Err(Refusal::Internal { what: String::new() })
}
