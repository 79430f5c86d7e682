"""Loadback prefetch, planned: which KV moves up the tiers before the turn that needs it, from where, when, and when to stop.

Pure: no I/O, no clock, no HTTP. The router drives it in real time, the simulator in virtual time, with the same code:

    planner = Planner(PrefetchParams())
    moves = planner.plan(event, view, now_ms)   # for every event, and `Tick()` at the latest at planner.next_ms
    planner.next_ms                             # when a `Tick` may do something; None = not before another event

**Events** (`events`): `Ended` (a reply is over: the thread's re-entry is expected), `ToolClosed` (a tool call's JSON
closed in the stream: its name is known), `Held` (a turn has come and waits in the gateway for room at a worker), `Sent`
(a turn was placed on a worker: what was staged is for it, or the plan is revised), `Prefilled` (it stands in its
worker's queue no more: those behind it are looked at), `Served` (its KV is restored: leases end), `Asked` (an explicit
call; `job` is the caller's handle), `Claimed` (that prompt is this thread's), `Resumed` (a session shows signs of
life), `Drained` and `ScaledOut` (hot threads move first), `Gone` (compacted, ended, or the client said so),
`CancelJob`, `Progressed`, `MoveEnded` and `MoveFailed` (what became of a move), `NodeLost`, `EngineRestarted`,
`DemandWaits` (a demand read waits for a link that prefetch uses), `Tick`.

**View** (`view.View`, the caller's): `target(subject, worker)` is where the subject's next turn would be sent now, by the
very cost model that will route it, with its prompt as that worker would find it; `link(path)` and `node(name)` are
bandwidth, demand, room and harm; `changes(worker)` says whether idle threads need to be looked at again. A subject is a
thread's id, or a name that the caller gave to an explicit prompt. The planner never sees tokens or hashes: it speaks of
token ranges of a subject's prompt.

**Moves** (`moves`), to be executed by the caller: `Stage` copies a token range into a node's L3 by agents, at the pace it
names; answered by `MoveEnded(move, moved_bytes)` or `MoveFailed(move, reason)`, in any order. `Warm` is a request to the
engine with the prompt's leading tokens, which restores L3 → L2 → L1; answered the same way. `CancelMove` takes one back: no
answer is expected. `Hold` leases the leading tokens in a node's L3 and L4 for the job, `Release` ends that; every `Hold` is
followed by one `Release`.

**Jobs** (`job`): QUEUED → FETCHING → READY → CONSUMED | EXPIRED, CANCELLED and FAILED(reason) from anywhere before the end.
`planner.job(id)` tells one; `planner.tallies[trigger]` counts planned, moved, useful, wasted and late bytes, ms saved and
ms added.

Nothing is prefetched whose expected benefit, P(return in the window) x P(it goes there) x ms saved x turns that wait behind
it, does not beat what it costs in link time, engine time, eviction harm and waste (`benefit`). P(return) comes from
`reentry`: survival estimates of the gap per thread, tool and client; P(it goes there) from `destination`: how often such
forecasts came true. Budgets per node and per link bound what is in flight and what is held (`budget`); where demand
waits, nothing starts.
"""
