"""No hang without a culprit.

`activity` notes what each thread of this rank is doing, `sight` looks at it (where, which collective, how much memory),
`post` carries that to the other ranks, `culprit` and `suspicion` find out who is to blame, `dog` and `ending` act.
"""
